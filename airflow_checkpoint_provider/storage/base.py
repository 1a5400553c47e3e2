"""The interface of a store, and the loop that puts an object if it is absent. Runs anywhere.

A store holds objects under keys: names joined by ``/``, relative to its root. It writes an object completely or not at all,
reads return what was written, and if several writers put at one absent key, exactly one wins. Nothing else is needed from a
store: no lock, no rename, no order between keys, no clock.
"""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import uniform
from time import monotonic, sleep
from typing import ClassVar, Protocol

from airflow_checkpoint_provider.errors import Damaged, InvalidName, StoreError, StoreUnavailable, TooLarge

log = logging.getLogger(__name__)

FIRST_WAIT = 0.1  # seconds between the first two tries of a put, at most; doubles
LONGEST_WAIT = 2.0  # seconds
PART = 8 * 1024 * 1024  # bytes of an object in memory at a time, while it is copied
LARGEST = 64 * 1024 * 1024
"""Bytes of an object that is no file of rows: a seal of 300,000 files, for example. To parse it takes some five times the memory. A
snapshot of the journal stays below it: half of it is for checkpoints (``protocol.state.LARGEST_LIST``). A larger object was planted, or
holds rows under a wrong name: it must not end a reader.
"""


class Put(enum.Enum):
    """The outcome of a put-if-absent."""

    STORED = "stored"
    EXISTS = "exists"
    UNKNOWN = "unknown"
    """No answer: the put may have happened, or may still happen."""


@dataclass(frozen=True)
class Listed:
    """One object of a listing: its key, relative to the store's root, and its size in bytes."""

    key: str
    size: int


class Store(Protocol):
    """A checkpoint storage.

    Every method may raise ``StoreDenied`` and ``StoreMisconfigured``, which never mean "absent", ``StoreUnavailable`` if
    trying again may help, and ``InvalidName`` for a key that could leave the root.
    """

    @property
    def uri(self) -> str:
        """Return the root as a URI, without a slash at its end."""

    @property
    def savepoint_roots(self) -> tuple[str, ...] | None:
        """Return the URIs below which savepoints may lie, its own among them; None: anywhere."""

    def create(self, key: str, body: bytes) -> Put:
        """Put ``body`` if ``key`` is absent, in one try. After an error this try changed nothing. ``EXISTS`` may be caused by our
        own earlier request whose answer was lost. Raises ``TooLarge`` for a body that ``read`` would refuse."""

    def read(self, key: str) -> bytes | None:
        """Return the whole object; ``None`` only if it is absent. Raises ``Damaged`` if it has more than ``LARGEST`` bytes, of which only a
        few are read.
        """

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        """Return ``length`` bytes of an object from byte ``start``, fewer at its end; ``None`` only if it is absent.

        ``start`` lies inside of the object, and ``length`` is positive.
        """

    def overwrite(self, key: str, body: bytes) -> None:
        """Replace or create an object, completely or not at all. After ``StoreUnavailable`` it may have happened. Raises
        ``TooLarge`` for a body that ``read`` would refuse."""

    def parts(self, key: str) -> Iterator[bytes]:
        """Yield an object in pieces for a copy: ``PART`` bytes each, fewer in the last. Raises ``Damaged`` if it is absent."""

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        """``overwrite`` with the joined pieces, of ``PART`` bytes each but the last. Few are in memory at a time.

        It is for rows, so their sum has no limit.
        """

    def make_durable(self, keys: Iterable[str]) -> None:
        """Let objects that another program wrote survive a power cut, as every object that the store itself writes does.

        Raises ``Damaged`` if that fails: bytes may be lost then, and no second try would tell.
        """

    def publish(self, key: str, new: str) -> bool:
        """Let an object appear at ``new``, a name that no other object ever has. Return False if there is nothing at ``key`` any more.

        A local file moves. In S3 the service copies, and the caller deletes ``key`` afterwards. Either way, a process that wakes up late
        finds nothing at ``key``, so it can bring nothing back that was deleted at ``new`` meanwhile: a copy that it has begun ends with
        ``end_uploads``. After ``StoreUnavailable`` it may have happened.
        """

    def end_uploads(self, keys: Iterable[str]) -> None:
        """Let no ``publish`` to these keys end that has begun before. Call it after the objects to publish were deleted."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. Absent keys are no error."""

    def delete_under(self, prefix: str) -> None:
        """Delete everything below ``prefix/``, also hidden files and empty directories."""

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Yield the objects below ``prefix/`` (``""``: all) with keys greater than ``after``, in byte order, without hidden ones.

        An object that is put meanwhile may be missing, also if a later one is there: a folder is no snapshot.
        """

    def hidden(self, prefix: str) -> Iterator[str]:
        """Yield the keys of the hidden objects directly below ``prefix/``: a name that begins with a dot. Spark writes such objects."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names directly below ``prefix/`` that have keys below them, without hidden ones. A local store also yields
        directories that are empty by now."""

    def beside(self, uri: str, *, limited: bool = True) -> Store:
        """Return the store at ``uri``, of any kind. A store in S3 is reached like this one: same service, same credentials.

        A savepoint leads there, which a person has named or a journal lists. Raises ``StoreMisconfigured`` for a URI that cannot be a
        store, and for one where savepoints of this store may not lie. Not ``limited``: also outside of its savepoint roots, for a savepoint
        that is deleted. Nothing is read or written yet.
        """


class StoreBase:
    """Base of the stores of this package: it can open other stores.

    ``storage.registry`` opens them, because only it knows every kind of store, and sets ``savepoint_roots``.
    """

    open_beside: ClassVar[Callable[[StoreBase, str, bool], Store]]
    uri: str
    savepoint_roots: tuple[str, ...] | None = None

    def make_durable(self, keys: Iterable[str]) -> None:
        """Do nothing: an object is durable once it is written, by any program."""

    def end_uploads(self, keys: Iterable[str]) -> None:
        """Do nothing: an object appears at once."""

    def beside(self, uri: str, *, limited: bool = True) -> Store:
        return StoreBase.open_beside(self, uri, limited)


def resolved(uri: str) -> str:
    """Return the URI of a folder without symbolic links in its path, and any other URI as it is."""
    path = _path(uri)
    return f"file://{os.path.realpath(path)}" if path else uri


def same_root(one: str, other: str) -> bool:
    """Return whether two URIs of stores lead to one root: also through links, or another name of a file system on this host."""
    if resolved(one) == resolved(other):
        return True
    with suppress(OSError):  # one of them is not there
        return bool(_path(one) and _path(other)) and os.path.samefile(_path(one), _path(other))
    return False


def is_out_of_sight(uri: str) -> bool:
    """Return whether a root is a folder that is not there on this host, or that this user may not reach: it may be mounted elsewhere."""
    return bool(_path(uri)) and not os.path.isdir(_path(uri))


def _path(uri: str) -> str:
    """Return the path of a folder; empty for a URI of another kind."""
    return path if (path := uri.removeprefix("file://")) != uri else ""


def lies_in(home: Store, other: Store) -> bool:
    """Return whether ``other``, which lies beside ``home``, may be used because a stored object names it.

    It must lie below the root. If the store has savepoint roots, ``beside`` has compared it with them.
    """
    return home.savepoint_roots is not None or f"{other.uri}/".startswith(f"{home.uri}/")


def put(store: Store, key: str, body: bytes, *, patience: float = 30.0) -> tuple[Put, bytes | None]:
    """Put ``body`` at ``key`` if it is absent, and try until the outcome is known. Return the outcome and the object at the key.

    An answer can be lost, and the store can answer "exists" because of our own write, even to the first try. So the object is
    read and compared: equal bytes are ``STORED``, no matter who sent them; other bytes are ``EXISTS``, though ours may have
    been there and been overwritten. Where it matters *who* put them, the bytes hold a nonce, one per entry and not per try.
    "Absent" proves nothing, since a request may arrive later: then the same bytes are put again.

    After ``patience`` seconds the outcome is ``UNKNOWN``, with ``None``: the put may still happen, so the caller must not clean up as if it
    had not. Raises an error only while no try can have had an effect: ``StoreDenied`` and ``StoreMisconfigured`` at once,
    ``StoreUnavailable`` after ``patience``. ``Damaged``: the object at the key is too large to be read, so it is not ours.
    """
    perhaps_sent = False
    trouble: StoreError | None = None
    for _ in _tries(patience):
        try:
            outcome = store.create(key, body)
            if outcome is Put.STORED:
                return outcome, body
            perhaps_sent = True
            stored = store.read(key)
            if stored is not None:
                return (Put.STORED if stored == body else Put.EXISTS), stored
        except StoreError as error:
            if not perhaps_sent and not isinstance(error, StoreUnavailable):
                raise
            trouble = error
    if trouble is not None and not perhaps_sent:
        raise trouble
    last = trouble or "no answer to the put, and nothing there yet"
    log.warning("%s/%s: after %g s it is not known whether it was stored. %s", store.uri, key, patience, last)
    return Put.UNKNOWN, None


def _tries(patience: float) -> Iterator[None]:
    """Yield for each try: the first at once, others after growing waits, the last when patience ends. Jitter separates writers
    that collided."""
    deadline, longest = monotonic() + patience, FIRST_WAIT
    yield
    while (remaining := deadline - monotonic()) > 0:
        sleep(min(uniform(longest / 2, longest), remaining))
        longest = min(2 * longest, LONGEST_WAIT)
        yield


def exists(store: Store, key: str) -> bool:
    """Return whether there is an object, also if it is too large to be read."""
    try:
        return store.read(key) is not None
    except Damaged:
        return True


def checked(key: str) -> str:
    """Return the key. Raises ``InvalidName`` if a store could read it as a path out of its root."""
    if "\0" in key or any(name in ("", ".", "..") for name in key.split("/")):
        raise InvalidName(f"{key!r} is not a valid key. Write names joined by single slashes, none of them '.' or '..'")
    return key


def is_hidden(key: str) -> bool:
    """Return whether listings skip the key: a name in it begins with a dot, such as a temporary file or ``.x.crc``."""
    return key.startswith(".") or "/." in key


def missing(uri: str, key: str) -> Damaged:
    """Return the error for an object that cannot be copied. A seal names it, so it existed."""
    return Damaged(f"{uri}/{key} is missing, so it cannot be copied. `checkpoints verify` checks the other files")


def fitting(body: bytes, uri: str, key: str) -> bytes:
    """Return the body of an object to write. Raises ``TooLarge`` if nobody could read it again."""
    if len(body) > LARGEST:
        raise TooLarge(
            f"{uri}/{key} would have {len(body)} bytes, more than the {LARGEST} that are read of one object. Nothing was written."
            " Use fewer states, or fewer files for each, for example by df.coalesce(n)",
            size=len(body),
        )
    return body


def oversized(uri: str, key: str) -> Damaged:
    """Return the error for an object that is too large to be read."""
    return Damaged(
        f"{uri}/{key} has more than {LARGEST} bytes. No such object is ever written there, so somebody or something changed it."
        " Bring the original back, or delete it"
    )


def whole(read: Callable[[int], bytes], uri: str, key: str, size: int) -> bytes:
    """Return all bytes that ``read`` returns until its end. Raises ``Damaged`` for more than ``LARGEST`` bytes: at once if the object says
    that it has such a ``size`` (0: it does not say), else when so many were read. It may grow meanwhile.
    """
    if size > LARGEST:
        raise oversized(uri, key)
    body = bytearray()
    for piece in pieces(read):
        body += piece
        if len(body) > LARGEST:
            raise oversized(uri, key)
    return bytes(body)


def pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the bytes that ``read`` returns until its end, in pieces of ``PART`` bytes, fewer in the last."""
    while piece := read(PART):
        while len(piece) < PART and (more := read(PART - len(piece))):
            piece += more
        yield piece
