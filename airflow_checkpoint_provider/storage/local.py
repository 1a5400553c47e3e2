"""A local or mounted directory as a store. Runs anywhere.

An object is a file that appears by one ``link()``, complete and synced: the kernel refuses a second one, nobody reads half of it, and a
writer killed half-way leaves a hidden temporary file at most. That holds on local file systems and on NFS, between processes and hosts. The
driver's and Airflow's user can share a root that both may write: files below it follow its mode.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedReader

from airflow_checkpoint_provider.errors import Damaged, StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable
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
from airflow_checkpoint_provider.storage.directories import (
    DEEPEST,
    NoDirectory,
    create_file,
    make_root,
    open_file,
    opened,
    refuse_other,
    remove_tree,
    scan,
    sync,
)

log = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
LEFT_OVER = 24 * 3600  # seconds after which a temporary file is taken for a killed writer's

DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
FULL = {errno.ENOSPC, errno.EDQUOT}
NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
ABSENT = {errno.ENOENT, errno.ENOTDIR}
CANNOT_LINK = NO_HARD_LINKS | ABSENT | {errno.EXDEV, errno.EMLINK, errno.EACCES}  # nor the files of other users
UNUSABLE_PATH = {errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}
LOSSES = FULL | {errno.EIO}  # of a sync: the kernel has dropped bytes that it could not write


class LocalStore(StoreBase):
    """The directory ``root``, or the one ``below`` it. A relative path is made absolute at once.

    The first write creates ``root``, for its owner alone (``private``) or with the rights of the directory above; with
    ``create_root=False`` it must exist, so that a mistyped path is an error. ``root`` may be a link. The directory ``below`` it is treated
    as any other directory in it: it is opened through no link, and created with the rights of the directory above.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, below: str = "", create_root: bool = True, private: bool = True
    ) -> None:
        self.root = os.path.abspath(root)
        self._below = _names(below)
        self._place = "/".join((self.root, *self._below))
        self.uri = f"file://{self._place}"
        self._create_root, self._private = create_root, private

    def check_root(self) -> None:
        """Raise ``StoreMisconfigured`` if the root does not exist."""
        if not os.path.isdir(self.root):
            what = "is not a folder" if os.path.lexists(self.root) else "does not exist"
            raise StoreMisconfigured(
                f"the folder {self.root} {what}. Create it where Airflow and all Spark drivers see it, or correct the root"
            )

    def create(self, key: str, body: bytes) -> Put:
        with self._writing(key) as (folder, name):
            with _temporary(folder, [fitting(body, self.uri, key)]) as temporary:
                outcome = _link(temporary, name, folder, self._path(key))
            if outcome is Put.STORED:
                try:
                    sync(folder)
                except OSError as error:  # everybody sees it, so nobody tries again
                    log.warning(
                        "%s: its folder cannot be synced, so a power cut may lose it: %s", self._path(key), error
                    )
                    return Put.UNKNOWN
            return outcome

    def read(self, key: str) -> bytes | None:
        with _explained("read", self._path(key)), _unless_absent(), self._file(key) as file:
            return whole(file.read, self.uri, key, os.fstat(file.fileno()).st_size)
        return None

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        with _explained("read", self._path(key)), _unless_absent(), self._file(key) as file:
            file.seek(start)
            return file.read(length)
        return None

    def overwrite(self, key: str, body: bytes) -> None:
        self.assemble(key, [fitting(body, self.uri, key)])

    def parts(self, key: str) -> Iterator[bytes]:
        with _explained("read", self._path(key)):
            try:
                with self._file(key) as file:
                    size = os.fstat(file.fileno()).st_size  # bytes that are appended meanwhile were never acknowledged
                    yield from pieces(lambda most: file.read(min(most, size - file.tell())))
            except (FileNotFoundError, NotADirectoryError):
                raise missing(self.uri, key) from None

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        with self._writing(key) as (folder, name):
            with _temporary(folder, parts) as temporary:
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            sync(folder)

    def make_durable(self, keys: Iterable[str]) -> None:
        folders = set[tuple[str, ...]]()
        for above, objects in _by_folder(keys).items():
            folders.update(above[:depth] for depth in range(1, len(above) + 1))
            with _explained("write", "/".join((self._place, *above))), self._opened(above) as folder:
                for name in objects:
                    path = "/".join((self._place, *above, name))
                    with open(open_file(name, folder, path), "rb") as file, _lost(path):
                        os.fsync(file.fileno())
        for names in sorted(folders):
            path = "/".join((self._place, *names))
            with _explained("write", path), self._opened(names) as folder, _lost(path):
                sync(folder)

    def publish(self, key: str, new: str) -> bool:
        *names, name = checked(key).split("/")
        with self._writing(new) as (folder, new_name):
            try:
                with self._opened(names) as above:
                    refuse_other(name, above, self._path(key))
                    os.rename(name, new_name, src_dir_fd=above, dst_dir_fd=folder)
                    sync(above)
            except (FileNotFoundError, NotADirectoryError):
                return False
            sync(folder)
        return True

    def delete(self, keys: Iterable[str]) -> None:
        for above, objects in _by_folder(keys).items():
            path = "/".join((self._place, *above))
            with _explained("delete", path), _unless_absent(), self._opened(above) as folder:
                for name in objects:
                    with _explained("delete", f"{path}/{name}"), _unless_absent():
                        os.unlink(name, dir_fd=folder)
                _delete_leftovers(folder)  # a deletion has time to delete also the files of killed writers

    def delete_under(self, prefix: str) -> None:
        path, (*names, name) = self._path(prefix), prefix.split("/")
        with _explained("delete", path), _unless_absent(), self._opened(names) as folder:
            while True:
                try:
                    return remove_tree(name, folder, path)
                except FileNotFoundError:  # absent, or somebody else deletes here, too
                    os.stat(name, dir_fd=folder, follow_symlinks=False)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return self._walk(_names(prefix), after, DEEPEST)

    def hidden(self, prefix: str) -> Iterator[str]:
        names, above = _names(prefix), f"{prefix}/" if prefix else ""
        with _explained("list", "/".join((self._place, *names))), _unless_absent(), self._opened(names) as folder:
            hidden = (entry for entry in scan(folder) if is_hidden(entry.name) and _is_text(entry.name))
            found = [entry.name for entry in hidden if entry.is_file(follow_symlinks=False)]
            return iter([f"{above}{name}" for name in sorted(found)])
        return iter(())

    def link_from(self, source: LocalStore, source_key: str, key: str) -> int | None:
        """Give an object of ``source`` a second name, and return its size in bytes; None if that cannot be done, or there is none.

        For files that are never changed in place: neither store copies the bytes.
        """
        *names, name = checked(source_key).split("/")
        with self._writing(key) as (folder, new_name):
            temporary = _temporary_name()
            try:
                with source._opened(names) as above:
                    os.link(name, temporary, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False)
                with open(open_file(temporary, folder, self._path(key)), "rb") as file:
                    os.fsync(file.fileno())  # its writer may not have done it
                    size = os.fstat(file.fileno()).st_size
                os.replace(temporary, new_name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno in CANNOT_LINK:
                    return None
                raise
            finally:
                with suppress(OSError):  # two names of one file: then nothing was replaced
                    os.unlink(temporary, dir_fd=folder)
            sync(folder)
            return size

    def folders(self, prefix: str) -> Iterator[str]:
        return (name[:-1] for name, _ in self._children(_names(prefix)) if name.endswith("/"))

    def links(self, prefix: str) -> Sequence[str]:
        """Return the names directly below ``prefix/`` that are links. They are no folders, because the store follows none."""
        names = _names(prefix)
        with _explained("list", "/".join((self._place, *names))), _unless_absent(), self._opened(names) as folder:
            return sorted(entry.name for entry in scan(folder) if entry.is_symlink() and _is_text(entry.name))
        return []

    def _walk(self, names: Sequence[str], after: str, depth: int) -> Iterator[Listed]:
        for name, size in self._children(names, after) if depth else ():
            key = "/".join((*names, name))
            if name.endswith("/"):
                if key < after and not after.startswith(key):
                    continue  # so do all keys below it
                yield from self._walk([*names, name[:-1]], after, depth - 1)
            else:
                yield Listed(key, size)

    def _children(self, names: Sequence[str], after: str = "") -> Sequence[tuple[str, int]]:
        """Return the visible names with sizes. The name of a directory ends in ``/``, so that sorted names give sorted
        keys below, too. The sizes of files with keys up to ``after`` are not asked for: a long journal has thousands of them.

        Characters sort as their UTF-8 bytes do. Links, and anything else that is neither file nor directory, are left out: the store never
        creates them. Names that are no text are left out, too.
        """
        children, above = [], "".join(f"{name}/" for name in names)
        with _explained("list", "/".join((self._place, *names))), _unless_absent(), self._opened(names) as folder:
            for entry in scan(folder):
                if is_hidden(entry.name) or not _is_text(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    children.append((f"{entry.name}/", 0))
                elif f"{above}{entry.name}" > after and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        children.append((entry.name, entry.stat(follow_symlinks=False).st_size))
        return sorted(children)

    def _path(self, key: str) -> str:
        """Return the path of an object, for messages."""
        return f"{self._place}/{checked(key)}"

    def _opened(self, names: Sequence[str], *, make: bool = False) -> AbstractContextManager[int]:
        return opened(self.root, (*self._below, *names), make=make)

    @contextmanager
    def _file(self, key: str) -> Iterator[BufferedReader]:
        *names, name = key.split("/")
        with self._opened(names) as folder, open(open_file(name, folder, self._path(key)), "rb") as file:
            yield file

    @contextmanager
    def _writing(self, key: str) -> Iterator[tuple[int, str]]:
        """Yield a handle of the directory of an object, which is created if it is absent, and the name of the object in it."""
        path, (*names, name) = self._path(key), key.split("/")
        with _explained("write", path):
            if not os.path.lexists(self.root):
                self._make_root()
            with self._opened(names, make=True) as folder:
                yield folder, name

    def _make_root(self) -> None:
        if not self._create_root:
            self.check_root()
        make_root(self.root, private=self._private)


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
            right = "Mount it for writing" if error.errno == errno.EROFS else f"Give user {os.geteuid()} the right to"
            raise StoreDenied(f"{text}. {right}, or choose another root") from error
        if isinstance(error, NoDirectory | IsADirectoryError):
            raise StoreMisconfigured(f"{text}. Somebody or something put it there; move it away") from error
        if error.errno in UNUSABLE_PATH:
            raise StoreMisconfigured(f"{text}. Choose another root, on a local or NFS file system") from error
        advice = "Make room there (`checkpoints prune JOB`)" if error.errno in FULL else "Look at the disk or mount"
        raise StoreUnavailable(f"{text}. {advice}; trying again may help") from error


def _names(prefix: str) -> Sequence[str]:
    """Return the names of the directories of a prefix; none of an empty prefix."""
    return checked(prefix).split("/") if prefix else []


def _by_folder(keys: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    """Return the names of objects by the names of their directories."""
    folders: dict[tuple[str, ...], list[str]] = {}
    for key in keys:
        *names, name = checked(key).split("/")
        folders.setdefault(tuple(names), []).append(name)
    return folders


@contextmanager
def _lost(path: str) -> Iterator[None]:
    """Raise ``Damaged`` for a sync that failed: the kernel says so once, and a second one would succeed."""
    try:
        yield
    except OSError as error:
        if error.errno not in LOSSES:  # nothing was synced: the directory cannot be opened, for example
            raise
        raise Damaged(
            f"{path} could not be written to the disk ({error.strerror}), so bytes of it may be lost"
        ) from error


def _unless_absent() -> suppress:
    """Pass over an absent object, or one whose key lies below a file."""
    return suppress(FileNotFoundError, NotADirectoryError)


def _is_text(name: str) -> bool:
    """Return whether a name is UTF-8. Python shows other bytes as surrogates, which no output can write."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


@contextmanager
def _temporary(folder: int, parts: Iterable[bytes]) -> Iterator[str]:
    """Yield the name of a complete and synced file in ``folder``. The hidden name says who made it; it is removed afterwards."""
    temporary = _temporary_name()
    try:
        with open(create_file(temporary, folder), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())  # before it gets its name: else that may survive a power cut without the content
        yield temporary
    finally:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def _temporary_name() -> str:
    return f"{TEMPORARY}{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(8)}"


def _link(temporary: str, name: str, folder: int, path: str) -> Put:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if _has_second_name(temporary, folder):  # NFS: done, but the answer was lost and the client asked again
            return Put.STORED
        if error.errno == errno.EEXIST:
            refuse_other(name, folder, path)
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


def _has_second_name(name: str, folder: int) -> bool:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_nlink == 2
    except OSError:
        return False


def _delete_leftovers(folder: int) -> None:
    """Delete the temporary files of killed writers. A writer that was only suspended finds its link refused, and puts again."""
    with suppress(OSError):
        for entry in scan(folder):
            if entry.name.startswith(TEMPORARY) and _age(entry) > LEFT_OVER:
                os.unlink(entry.name, dir_fd=folder)


def _age(entry: os.DirEntry[str]) -> float:
    return time.time() - entry.stat(follow_symlinks=False).st_mtime
