"""The folder of a file sink as a store reaches it, without Spark. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO

from airflow_checkpoint_provider.errors import Damaged, StoreUnavailable
from airflow_checkpoint_provider.file_sink.log import refuse_other_size
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.location.foreign import readable
from airflow_checkpoint_provider.storage.base import LARGEST, Put, exists, pieces, put
from airflow_checkpoint_provider.storage.copy import copy


class StoreFolder:
    """The folder ``location`` of a store. The store refuses links itself."""

    def __init__(self, location: Location) -> None:
        self._location, self._store = location, location.store
        self.uri = location.uri

    def names(self, below: str) -> list[str]:
        folder = f"{self._key(below)}/"
        keys = (listed.key.removeprefix(folder) for listed in self._store.list(self._key(below)))
        return sorted({key.partition("/")[0] for key in keys})

    def is_empty(self) -> bool:
        """Return whether the sink holds nothing, or does not exist. Cost: a page of a listing."""
        return next(iter(self._store.list(self._location.key)), None) is None

    def hidden(self, below: str) -> list[str]:
        return [key.rpartition("/")[2] for key in self._store.hidden(self._key(below))]

    def sizes(self, below: str) -> dict[str, int]:
        own = f"{self._location.key}/"
        return {listed.key.removeprefix(own): listed.size for listed in self._store.list(self._key(below))}

    def read(self, key: str, at_most: int | None = None) -> tuple[str, bool]:
        with readable(f"{self.uri}/{key}"):
            return b"".join(self._store.parts(self._key(key))).decode(), True

    def put(self, key: str, text: str) -> None:
        body = text.encode()
        if len(body) <= LARGEST:
            outcome, _ = put(self._store, self._key(key), body)
            if outcome is Put.UNKNOWN:
                raise StoreUnavailable(f"nobody knows whether {self.uri}/{key} was written. Try again")
        elif not exists(self._store, self._key(key)):  # the log of a sink with very many files
            self._store.assemble(self._key(key), pieces(BytesIO(body).read))

    def copy(self, key: str, new: str) -> None:
        if not exists(self._store, self._key(new)):
            copy(self._store, self._key(key), self._store, self._key(new))

    def move(self, key: str, new: str, size: int) -> bool:
        try:
            copied = copy(self._store, self._key(key), self._store, self._key(new), linked=True)
        except Damaged:  # there is nothing to copy
            return False
        refuse_other_size(f"{self.uri}/{new}", copied, size)
        self.delete([key])
        return True

    def delete(self, keys: Iterable[str]) -> None:
        self._store.delete([self._key(key) for key in keys])

    def delete_under(self, below: str) -> None:
        """Delete a folder, with the empty folders in it."""
        self._store.delete_under(self._key(below))

    def refuse_link(self, key: str) -> None:
        """Do nothing: no store follows a link."""

    def _key(self, key: str) -> str:
        return self._location.key_of(key) if key else self._location.key
