"""A store in the memory of one process, for tests. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from threading import Lock

from airflow_checkpoint_provider.storage.base import (
    LARGEST,
    Listed,
    Put,
    StoreBase,
    checked,
    fitting,
    is_hidden,
    missing,
    oversized,
    pieces,
)


class MemoryStore(StoreBase):
    """Objects in a dict, which threads can share and processes cannot."""

    def __init__(self, name: str = "private") -> None:
        self.uri = f"memory://{name}"
        self.objects: dict[str, bytes] = {}
        self._lock = Lock()

    def create(self, key: str, body: bytes) -> Put:
        with self._lock:
            if checked(key) in self.objects:
                return Put.EXISTS
            self.objects[key] = bytes(fitting(body, self.uri, key))
            return Put.STORED

    def read(self, key: str) -> bytes | None:
        body = self.objects.get(checked(key))
        if body is not None and len(body) > LARGEST:
            raise oversized(self.uri, key)
        return body

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        body = self.objects.get(checked(key))
        return None if body is None else body[start : start + length]

    def overwrite(self, key: str, body: bytes) -> None:
        self.assemble(key, [fitting(body, self.uri, key)])

    def parts(self, key: str) -> Iterator[bytes]:
        body = self.objects.get(checked(key))
        if body is None:
            raise missing(self.uri, key)
        return pieces(BytesIO(body).read)

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        body = b"".join(parts)
        with self._lock:
            self.objects[checked(key)] = body

    def publish(self, key: str, new: str) -> bool:
        with self._lock:
            body = self.objects.pop(checked(key), None)
            if body is not None:
                self.objects[checked(new)] = body
            return body is not None

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._lock:
                self.objects.pop(checked(key), None)

    def delete_under(self, prefix: str) -> None:
        start = _start(checked(prefix))
        with self._lock:
            for key in [key for key in self.objects if key.startswith(start)]:
                del self.objects[key]

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        start = _start(prefix)
        with self._lock:
            below = sorted((key, len(body)) for key, body in self.objects.items() if key.startswith(start))
        return iter([Listed(key, size) for key, size in below if key > after and not is_hidden(key[len(start) :])])

    def hidden(self, prefix: str) -> Iterator[str]:
        start = _start(prefix)
        with self._lock:
            return iter(
                sorted(key for key in self.objects if key.startswith(f"{start}.") and "/" not in key[len(start) :])
            )

    def folders(self, prefix: str) -> Iterator[str]:
        below = (listed.key[len(_start(prefix)) :] for listed in self.list(prefix))
        return iter(sorted({name.partition("/")[0] for name in below if "/" in name}))


def _start(prefix: str) -> str:
    return f"{checked(prefix)}/" if prefix else ""


_named: dict[str, MemoryStore] = {}


def named(name: str) -> MemoryStore:
    """Return the store of this name in this process."""
    return _named.setdefault(name, MemoryStore(name))
