"""Directories below a root, each opened by its name in the one above, so that no link leads out of the root. Runs anywhere.

Another user who may write below the root can put a link there at any moment, also between the check of a path and its use. So no path is
used twice: a directory is opened as a directory and never through a link, and each operation in it uses its handle.

A new file or directory has the rights of the directory in which it lies, whatever the umask is; files are not executable. So everything
below the root follows the root's mode, and setgid makes the kernel hand down its group. In a sticky directory nobody may change the files
of others: it hands down no right to write for all.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from airflow_checkpoint_provider.errors import NoObject, StoreMisconfigured

PRIVATE = 0o700  # of a root that the store creates
DEEPEST = 100  # directories below each other in a listing or a deletion; keys have ten at most

_PATH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY  # needs only the right to search; macOS has none
_STEP = _PATH | os.O_NOFOLLOW
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY  # a pipe without a writer must not block
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class NoDirectory(NotADirectoryError):
    """Something else lies in the place of a directory below the root."""


@contextmanager
def opened(root: str, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Yield a handle of the directory ``names`` below ``root``. ``make`` creates absent directories, durably.

    Raises ``NoObject`` for a link below the root, and ``OSError``. The root itself may be a link: a person chose it.
    """
    handle = os.open(root, _PATH)
    try:
        for depth, name in enumerate(names, 1):
            above, handle = handle, _step(name, handle, "/".join((root, *names[:depth])), make=make)
            os.close(above)
        yield handle
    finally:
        os.close(handle)


def _step(name: str, above: int, path: str, *, make: bool = False) -> int:
    try:
        return os.open(name, _STEP, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
        _make(name, above)
        return _step(name, above, path)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            _refuse_link(name, above, path)
            raise NoDirectory(error.errno, f"{path} is not a directory") from error
        raise


def _make(name: str, above: int) -> None:
    with suppress(FileExistsError):  # another writer was faster, and may not have synced yet
        rights = _handed_down(above) | stat.S_IRWXU
        os.mkdir(name, rights, dir_fd=above)
        with _closing(os.open(name, _LIST, dir_fd=above)) as handle:
            _add(rights, handle)
    sync(above)


def _handed_down(folder: int) -> int:
    """Return the rights of a new file or directory in a directory."""
    mode = os.fstat(folder).st_mode
    return mode & (0o775 if mode & stat.S_ISVTX else 0o777)


def _add(rights: int, handle: int) -> None:
    """Add those of ``rights`` that the umask took away."""
    found = stat.S_IMODE(os.fstat(handle).st_mode)
    if missing := rights & ~found:
        with suppress(OSError):  # some mounts have fixed modes
            os.fchmod(handle, found | missing)


@contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def make_root(root: str, *, private: bool) -> None:
    """Create the root, for its owner alone if ``private``, and directories above it. Others get the rights of the one above. Each
    is made durable in its parent."""
    above, names = os.path.dirname(root), [os.path.basename(root)]
    while not os.path.lexists(above):
        above, name = os.path.split(above)
        names.insert(0, name)
    with opened(above, names[:-1] if private else names, make=True) as folder:
        if private:
            with suppress(FileExistsError):
                os.mkdir(names[-1], PRIVATE, dir_fd=folder)
            sync(folder)


def sync(folder: int) -> None:
    """Make the names in a directory durable."""
    with _closing(os.open(".", _LIST, dir_fd=folder)) as handle:
        os.fsync(handle)


def open_file(name: str, folder: int, path: str) -> int:
    """Return a handle to read a file. Raises ``NoObject`` for anything that is no file, and ``OSError``."""
    try:
        handle = os.open(name, _READ, dir_fd=folder)
    except OSError:
        refuse_other(name, folder, path)
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_file(path)
    return handle


def create_file(name: str, folder: int) -> int:
    """Return a handle to write a new file."""
    rights = _handed_down(folder) & 0o666 | stat.S_IRUSR | stat.S_IWUSR
    handle = os.open(name, _WRITE, rights, dir_fd=folder)
    _add(rights, handle)
    return handle


def scan(folder: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory. An entry can be asked only while it is the last one yielded."""
    with _closing(os.open(".", _LIST, dir_fd=folder)) as handle, os.scandir(handle) as entries:
        yield from entries


def remove_tree(name: str, above: int, path: str, depth: int = DEEPEST) -> None:
    """Delete a directory and everything in it. A link in it is deleted, and its target is not."""
    if not depth:
        raise StoreMisconfigured(
            f"{path} lies more than {DEEPEST} directories deep, where the store keeps nothing. Delete it by hand"
        )
    with _closing(_step(name, above, path)) as folder:
        for inner, is_folder in [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan(folder)]:
            if is_folder:
                remove_tree(inner, folder, f"{path}/{inner}", depth - 1)
            else:
                os.unlink(inner, dir_fd=folder)
    os.rmdir(name, dir_fd=above)


def refuse_other(name: str, folder: int, path: str) -> None:
    """Raise ``NoObject`` if there is something that is no file."""
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise _link(path)
        if not stat.S_ISREG(mode):
            raise _no_file(path)


def _refuse_link(name: str, above: int, path: str) -> None:
    """Raise ``NoObject`` for a link, and for a directory that was one a moment ago."""
    with suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
            raise _link(path)


def _link(path: str) -> NoObject:
    return NoObject(
        f"{path} is a symbolic link, and below its root the store follows none: they can lead out of it."
        " Mount the other disk there, or move all of the root"
    )


def _no_file(path: str) -> NoObject:
    return NoObject(
        f"cannot read {path}: it is not a file, and the store keeps only files, so somebody or something put it there. Move it away"
    )
