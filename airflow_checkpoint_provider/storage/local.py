"""A local or mounted directory as a store. Runs anywhere.

An object is a file that appears by one ``link()``, complete and synced: the kernel refuses a second one, nobody reads
half of it, and a writer killed half-way leaves a hidden temporary file at most. That holds on local file systems and on
NFS, between processes and hosts. Modes follow the umask, so that the driver's and Airflow's user can share a directory.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from airflow_checkpoint_provider.errors import StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.storage.base import (
    Listed,
    Put,
    StoreBase,
    checked,
    fitting,
    is_hidden,
    missing,
    pieces,
    whole,
)

TEMPORARY = ".tmp-"
LEFT_OVER = 24 * 3600  # seconds after which a temporary file is taken for a killed writer's

DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
NO_PLACE = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}


class LocalStore(StoreBase):
    """The directory ``root``. A relative path is made absolute at once.

    The first write creates ``root``; with ``create_root=False`` it must exist, so that a mistyped path is an error.
    """

    def __init__(self, root: str | os.PathLike[str], *, create_root: bool = True) -> None:
        self.root = os.path.abspath(root)
        self.uri = f"file://{self.root}"
        self._create_root = create_root

    def create(self, key: str, body: bytes) -> Put:
        path, body = self._path(key), fitting(body, self.uri, key)
        self._check_root()
        with _explained("write", path), _temporary(path, [body]) as temporary:
            outcome = _link(temporary, path)
        if outcome is Put.STORED:
            try:
                _sync(os.path.dirname(path))
            except OSError:  # there for all to see, but perhaps not after a power cut
                return Put.UNKNOWN
        return outcome

    def read(self, key: str) -> bytes | None:
        path = self._path(key)
        with _explained("read", path), suppress(FileNotFoundError, NotADirectoryError), open(path, "rb") as file:
            return whole(file.read, self.uri, key)
        return None

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        path = self._path(key)
        with _explained("read", path), suppress(FileNotFoundError, NotADirectoryError), open(path, "rb") as file:
            file.seek(start)
            return file.read(length)
        return None

    def overwrite(self, key: str, body: bytes) -> None:
        self.assemble(key, [fitting(body, self.uri, key)])

    def parts(self, key: str) -> Iterator[bytes]:
        path = self._path(key)
        with _explained("read", path):
            try:
                with open(path, "rb") as file:
                    yield from pieces(file.read)
            except (FileNotFoundError, NotADirectoryError):
                raise missing(self.uri, key) from None

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        path = self._path(key)
        self._check_root()
        with _explained("write", path):
            with _temporary(path, parts) as temporary:
                os.replace(temporary, path)
            _sync(os.path.dirname(path))

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            path = self._path(key)
            folders.add(os.path.dirname(path))
            with _explained("delete", path), suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
        for folder in folders:  # nobody waits for a deletion: the moment to tidy up after killed writers
            _sweep(folder)

    def delete_under(self, prefix: str) -> None:
        path = self._path(prefix)
        with _explained("delete", path), suppress(NotADirectoryError):
            while True:
                try:
                    return shutil.rmtree(path)
                except FileNotFoundError:  # absent, or somebody else deletes here, too
                    if not os.path.lexists(path):
                        return None

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return _walk(self._folder(prefix), f"{prefix}/" if prefix else "", after)

    def folders(self, prefix: str) -> Iterator[str]:
        return (name[:-1] for name, _ in _children(self._folder(prefix)) if name.endswith("/"))

    def _check_root(self) -> None:
        if not self._create_root and not os.path.lexists(self.root):
            raise StoreMisconfigured(
                f"the folder {self.root} does not exist. Create it where Airflow and all Spark drivers see it, or correct the root"
            )

    def _folder(self, prefix: str) -> str:
        return self._path(prefix) if prefix else self.root

    def _path(self, key: str) -> str:
        path = self.root
        for name in checked(key).split("/"):
            path = f"{path}/{name}"
            if os.path.islink(path):
                raise StoreMisconfigured(
                    f"{path} is a symbolic link, and below its root the store follows none: they can lead out of it."
                    f" Mount the other disk there, or move all of {self.root}"
                )
        return path


@contextmanager
def _explained(doing: str, path: str) -> Iterator[None]:
    """Raise errors of the operating system as errors of the store, with what to do about them."""
    try:
        yield
    except StoreError:  # of the store that is copied from; some are OSErrors, too
        raise
    except OSError as error:
        text = f"cannot {doing} {path}: {error.strerror}"
        if error.errno in DENIED:
            raise StoreDenied(f"{text}. Give user {os.geteuid()} the right to, or choose another root") from error
        if error.errno in NO_PLACE:
            raise StoreMisconfigured(f"{text}. Choose another root, on a local or NFS file system") from error
        raise StoreUnavailable(f"{text}. Look at the disk or mount; trying again may help") from error


@contextmanager
def _temporary(path: str, parts: Iterable[bytes]) -> Iterator[str]:
    """Yield the path of a complete and synced file beside ``path``. Its hidden name names its maker; it is removed afterwards."""
    folder = os.path.dirname(path)
    _make(folder)
    temporary = f"{folder}/{TEMPORARY}{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        with open(temporary, "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())  # before it gets its name: else that may survive a power cut without the content
        yield temporary
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _link(temporary: str, path: str) -> Put:
    try:
        os.link(temporary, path)
    except OSError as error:
        if _has_second_name(temporary):  # NFS: done, but the answer was lost and the client asked again
            return Put.STORED
        if error.errno == errno.EEXIST:
            return Put.EXISTS
        if error.errno in NO_HARD_LINKS:
            raise StoreMisconfigured(
                f"the file system of {path} has no hard links ({error.strerror}); put-if-absent needs them."
                " Choose another root, on a local or NFS file system"
            ) from error
        if error.errno in DENIED:
            raise
        return Put.UNKNOWN
    return Put.STORED


def _has_second_name(path: str) -> bool:
    try:
        return os.stat(path).st_nlink == 2
    except OSError:
        return False


def _make(folder: str) -> None:
    """Create the directory and its parents. Each new directory is made durable in its parent."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make(parent)
    with suppress(FileExistsError):  # another writer was faster, and may not have synced yet
        os.mkdir(folder)
    _sync(parent)


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(folder: str) -> None:
    """Delete the temporary files of killed writers. A writer that was only suspended finds its link refused, and puts again."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY) and entry.stat().st_mtime < time.time() - LEFT_OVER:
                os.unlink(entry.path)


def _walk(folder: str, start: str, after: str) -> Iterator[Listed]:
    for name, size in _children(folder):
        key = start + name
        if name.endswith("/"):
            yield from _walk(f"{folder}/{name[:-1]}", key, after)
        elif key > after:
            yield Listed(key, size)


def _children(folder: str) -> list[tuple[str, int]]:
    """Return the visible names with sizes. The name of a directory ends in ``/``, so that sorted names give sorted
    keys below, too.

    Characters sort as their UTF-8 bytes do. Links, and whatever is neither file nor directory, are left out: the
    store never creates them.
    """
    children = []
    with _explained("list", folder), suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                children.append((f"{entry.name}/", 0))
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    children.append((entry.name, entry.stat(follow_symlinks=False).st_size))
    return sorted(children)
