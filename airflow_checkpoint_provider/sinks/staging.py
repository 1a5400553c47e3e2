"""The folder of a target in which rows wait for their commit, one folder for each transaction. Runs anywhere.

Its name begins with ``_``, so readers of files, and the clean-up of a table, pass over it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from airflow_checkpoint_provider.errors import StoreUnavailable
from airflow_checkpoint_provider.protocol.fields import Size, TransactionName
from airflow_checkpoint_provider.protocol.records import VERSION, Record, checked
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.storage.base import Put, Store, put

STAGING = "_checkpoint-staging"
ROWS, OWNER = "rows", "_transaction"  # in the folder of a staged transaction


@dataclass(frozen=True, kw_only=True)
class Staged(Record):
    """A transaction that is staged: who writes it, and the entry of the log after which its own may lie."""

    name: TransactionName
    by: RunOfSink
    base: Size
    began: Size
    v: int = VERSION


S = TypeVar("S", bound=Staged)


class StagingFolder(Generic[S]):
    """The transactions that are staged in ``store``, whose root is the target. ``record`` is the class of their records."""

    def __init__(self, store: Store, record: type[S], patience: float = 30.0) -> None:
        self._store, self._record, self._patience = store, record, patience

    def make(self, staged: S) -> None:
        """Make the folder of a transaction. Its rows go to ``rows_key``, which does not exist yet.

        Raises ``StoreUnavailable`` if the store does not tell whether its record is there: nobody would find rows without one.
        """
        key = _owner_key(staged.name)
        if put(self._store, key, checked(staged), patience=self._patience)[0] is Put.UNKNOWN:
            raise StoreUnavailable(
                f"nobody knows whether {self._store.uri}/{key} was written, so no rows were staged. A retry stages them under another name"
            )

    def leftovers(self) -> tuple[S, ...]:
        """Return the transactions that are staged, whoever has staged them.

        Rows without a record are deleted: their transaction is over. Its driver slept, and has written on, or a deletion was stopped.
        """
        found = list[S]()
        for name in self._store.folders(STAGING):
            key = _owner_key(name)
            staged = is_staged(self._store, name)  # this first: no row is there before its record
            if (body := self._store.read(key)) is not None:
                found.append(self._record.from_bytes(body, f"{self._store.uri}/{key}"))
            elif staged:
                self.delete([name])
        return tuple(found)

    def delete(self, names: Iterable[str]) -> None:
        """Delete what is staged of transactions."""
        for name in names:
            self._store.delete_under(f"{STAGING}/{name}")


def is_staged(store: Store, name: str) -> bool:
    """Return whether anything of a transaction is staged."""
    return any(True for _ in store.list(f"{STAGING}/{name}"))


def rows_key(name: str) -> str:
    """Return the key below which the rows of a transaction are staged."""
    return f"{STAGING}/{name}/{ROWS}"


def _owner_key(name: str) -> str:
    return f"{STAGING}/{name}/{OWNER}"
