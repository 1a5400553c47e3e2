"""What every store does, and the one loop that puts. Runs anywhere.

A store holds objects under keys: names joined by ``/``, relative to its root. An object is written whole or not at all,
what was written is read, and of several who put at one absent key exactly one wins. Nothing else is asked of a store:
no lock, no rename, no order between keys, no clock.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import uniform
from time import monotonic, sleep
from typing import ClassVar, Protocol

from airflow_checkpoint_provider.errors import Damaged, InvalidName, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

FIRST_WAIT = 0.1  # seconds between the first two tries of a put, at most; doubles
LONGEST_WAIT = 2.0
PART = 8 * 1024 * 1024  # bytes of an object that are held at a time while it is copied


class Put(enum.Enum):
    """What came of putting a key that had to be absent."""

    STORED = "stored"
    EXISTS = "exists"
    UNKNOWN = "unknown"
    """No answer: it may have happened, or may still happen."""


@dataclass(frozen=True)
class Listed:
    """One object of a listing: its key, relative to the store's root, and its size in bytes."""

    key: str
    size: int


class Store(Protocol):
    """Where the bytes live.

    Every method may raise ``StoreDenied`` and ``StoreMisconfigured``, neither of which ever means "absent", and
    ``StoreUnavailable`` where trying again may help; ``InvalidName`` is for a key that could leave the root.
    """

    @property
    def uri(self) -> str:
        """The root, without a slash at its end."""

    def create(self, key: str, body: bytes) -> Put:
        """Put-if-absent, one try. After an error this try changed nothing. ``EXISTS`` can be one's own doing."""

    def read(self, key: str) -> bytes | None:
        """The whole object; ``None`` if it is absent, and only then."""

    def overwrite(self, key: str, body: bytes) -> None:
        """Replace or create, whole or not at all. After ``StoreUnavailable`` it may have happened."""

    def parts(self, key: str) -> Iterator[bytes]:
        """The whole object, for who copies it: pieces of ``PART`` bytes, but the last. ``Damaged`` if it is absent."""

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        """``overwrite`` with the pieces joined, of which few are held at a time. All but the last are ``PART`` bytes long."""

    def delete(self, keys: Iterable[str]) -> None:
        """Absent ones are fine."""

    def delete_under(self, prefix: str) -> None:
        """All that is below ``prefix/``, hidden files and empty folders too."""

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """What is below ``prefix/`` (all for ``""``) with a key beyond ``after``, in byte order; nothing hidden."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Names directly below ``prefix/`` that have, or in a directory had, keys below them; nothing hidden."""

    def beside(self, uri: str) -> Store:
        """Return the store at ``uri``, of any kind. One in S3 is reached as this one is: same service, same credentials.

        Raises ``StoreMisconfigured`` for what cannot be a store. Nothing is touched yet.
        """


class StoreBase:
    """What every store of this package inherits: it can open others. ``storage.registry`` says how, because that alone knows
    all kinds of stores."""

    open_beside: ClassVar[Callable[[Store, str], Store]]

    def beside(self: Store, uri: str) -> Store:
        return StoreBase.open_beside(self, uri)


def put(store: Store, key: str, body: bytes, *, patience: float = 30.0) -> tuple[Put, bytes | None]:
    """Put ``body`` at ``key`` if it is absent, until the outcome is known; returns it with what the key holds.

    An answer can be lost, and "exists" can be said of one's own write, even to the first try. So what stands there is
    read and compared: equal bytes are ``STORED``, whoever sent them; others are ``EXISTS``, though one's own may have
    been overwritten since. Where it matters *who* put them, they hold a nonce, fresh per entry and not per try.
    "Absent" settles nothing, since a request may land later: then the same bytes are put again.

    Past ``patience`` seconds the outcome is ``UNKNOWN``, with ``None``: it may happen yet, and nothing is cleaned up on
    the ground that it did not. An error is raised only while no try can have had an effect: ``StoreDenied`` and
    ``StoreMisconfigured`` at once, ``StoreUnavailable`` after ``patience``.
    """
    perhaps_sent = False
    trouble: StoreError | None = None
    for _ in _tries(patience):
        try:
            outcome = store.create(key, body)
            if outcome is Put.STORED:
                return outcome, body
            perhaps_sent = True
            found = store.read(key)
            if found is not None:
                return (Put.STORED if found == body else Put.EXISTS), found
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
    """One at once, more after growing waits, a last one when patience ends. Jitter parts those who collided."""
    deadline, longest = monotonic() + patience, FIRST_WAIT
    yield
    while (left := deadline - monotonic()) > 0:
        sleep(min(uniform(longest / 2, longest), left))
        longest = min(2 * longest, LONGEST_WAIT)
        yield


def checked(key: str) -> str:
    """The key itself, if no store could read it as a path out of its root; else ``InvalidName``."""
    if "\0" in key or any(name in ("", ".", "..") for name in key.split("/")):
        raise InvalidName(f"{key!r} is no key: write names joined by single slashes, none of them '.' or '..'")
    return key


def is_hidden(key: str) -> bool:
    """Whether listings leave it out: some name in it begins with a dot, as of temporary files and ``.x.crc``."""
    return key.startswith(".") or "/." in key


def missing(uri: str, key: str) -> Damaged:
    """What was to be copied is named by a seal, so it has been there."""
    return Damaged(f"{uri}/{key} is missing, so it cannot be copied; `checkpoints verify` says what else is gone")


def pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """What ``read`` gives until its end, in pieces of ``PART`` bytes, but the last."""
    while piece := read(PART):
        while len(piece) < PART and (more := read(PART - len(piece))):
            piece += more
        yield piece
