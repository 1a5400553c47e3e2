"""Targets of sinks in the one store there is, and who commits, aborts and overwrites there. Runs anywhere.

Each actor runs the package's own ``PublishedFiles``. Its transaction is given to it as bytes, as a checkpoint holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from airflow_checkpoint_provider.errors import CheckpointNotFound, OverwrittenSince, StoreError, StoreUnavailable
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.sinks.log import CommitLog, LogEntry, RunOfSink
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles, files_of_readers
from airflow_checkpoint_provider.sinks.staging import rows_key
from airflow_checkpoint_provider.storage.base import Listed, Put, Store
from tests.model.explore import TRIES_TWICE, Next, Process

TARGET, UPLOADS = "target", "uploads"  # folders of the one store


class Below:
    """The folder ``target`` of a store, as a store: a file moves at once."""

    uri, savepoint_roots = f"{Process.uri}/{TARGET}", None

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, key: str, body: bytes) -> Put:
        return self._store.create(_at(key), body)

    def read(self, key: str) -> bytes | None:
        return self._store.read(_at(key))

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        return self._store.read_range(_at(key), start, length)

    def overwrite(self, key: str, body: bytes) -> None:
        self._store.overwrite(_at(key), body)

    def parts(self, key: str) -> Iterator[bytes]:
        return self._store.parts(_at(key))

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        self._store.assemble(_at(key), parts)

    def make_durable(self, keys: Iterable[str]) -> None:
        """Do nothing: no power is cut."""

    def publish(self, key: str, new: str) -> bool:
        return self._store.publish(_at(key), _at(new))

    def place(self, key: str, row: str) -> None:
        """Write a file of rows, as Spark does."""
        place = self._store.place if isinstance(self._store, Process) else self._store.overwrite
        place(_at(key), row.encode())

    def end_uploads(self, keys: Iterable[str]) -> None:
        """Do nothing: a file moves at once."""

    def delete(self, keys: Iterable[str]) -> None:
        self._store.delete(map(_at, keys))

    def delete_under(self, prefix: str) -> None:
        self._store.delete_under(_at(prefix))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        found = self._store.list(_at(prefix), after and _at(after))
        return (Listed(listed.key.removeprefix(f"{TARGET}/"), listed.size) for listed in found)

    def hidden(self, prefix: str) -> Iterator[str]:
        return (key.removeprefix(f"{TARGET}/") for key in self._store.hidden(_at(prefix)))

    def folders(self, prefix: str) -> Iterator[str]:
        return self._store.folders(_at(prefix))

    def beside(self, uri: str, *, limited: bool = True) -> Store:
        return self._store.beside(uri, limited=limited)


class Bucket(Below):
    """The same in S3: an upload is begun, the service copies into it, and it is completed, or somebody has ended it meanwhile.

    An upload is an object of ``uploads`` that nobody lists as rows. Objects below a folder are deleted one by one.
    """

    def __init__(self, store: Process) -> None:
        super().__init__(store)
        self._process = store

    def publish(self, key: str, new: str) -> bool:
        if (body := self.read(key)) is None:
            return False
        upload = f"{UPLOADS}/{self._process.nonce()}/{new}"
        if self._process.create(upload, body) is Put.UNKNOWN:
            raise StoreUnavailable("nobody knows whether the upload was begun")
        if self.read(key) is None:  # what the service copies
            self._process.delete([upload])
            return False
        if not self._process.rename(upload, _at(new)):
            if self.read(key) is None:
                return False
            raise StoreUnavailable("another process has ended the upload")
        return True

    def end_uploads(self, keys: Iterable[str]) -> None:
        ended = tuple(f"/{key}" for key in keys)
        begun = [found.key for found in self._process.list(UPLOADS)]
        self._process.delete(upload for upload in begun if upload.endswith(ended))

    def delete_under(self, prefix: str) -> None:
        self.delete([found.key for found in self.list(prefix)])


def _at(key: str) -> str:
    return f"{TARGET}/{key}" if key else TARGET


def target(process: Process, bucket: bool) -> Below:
    return Bucket(process) if bucket else Below(process)


# -- actors ------------------------------------------------------------------------------------------------------------


def given(transaction: Transaction) -> bytes:
    return canonical(transaction.to_json())


def taken(prepared: bytes) -> Transaction:
    return Transaction.from_json(json.loads(prepared))


def staged(
    store: Below, files: PublishedFiles, name: str, row: str, replaces: tuple[str, ...] = (), version: int = 1
) -> Transaction:
    """Stage one file with one row. Raises ``StoreError``. No task of Spark writes on after its driver."""
    begun = files.stage(name)
    store.place(f"{rows_key(name)}/part-0", row)
    return Transaction(
        name=name, version=version, run=files.by.run, write=0, origin=Origin(plan=name, inputs=""),
        prepared=files.prepared(begun), replaces=replaces,
    )  # fmt: skip


def committer(
    process: Process, prepared: bytes, overwrite: bool = False, bucket: bool = False, again: int = 1
) -> Next | None:
    """A driver with a transaction of a completed checkpoint: the one that prepared it, or a retry of it."""
    made = taken(prepared)
    by = RunOfSink.from_json(made.prepared["by"])
    files = PublishedFiles(target(process, bucket), by, overwrite=overwrite, patience=TRIES_TWICE)
    try:
        process.says_for_good("committed" if files.commit(made) else "aborted", made.name)
    except OverwrittenSince:
        process.says_for_good("aborted", made.name)
    except StoreError:
        return Next(committer, prepared, overwrite, bucket, again - 1) if again else None
    return None


def aborter(
    process: Process, by: RunOfSink, names: tuple[str, ...], bucket: bool = False, again: int = 1
) -> Next | None:
    """A driver that finds what will never be committed."""
    files = PublishedFiles(target(process, bucket), by, overwrite=False, patience=TRIES_TWICE)
    try:
        committed = files.abort(names, 0)
    except StoreError:
        return Next(aborter, by, names, bucket, again - 1) if again else None
    for name in names:
        process.says_for_good("entered" if name in committed else "aborted", name)
    return None


def writer(
    process: Process, by: RunOfSink, names: tuple[str, ...], overwrite: bool, bucket: bool = False, clear: str = ""
) -> Next | None:
    """A whole run: it begins, stages and commits. After an error another try has another name. ``clear`` is a transaction of an earlier
    pass, which this one replaces."""
    store = target(process, bucket)
    files = PublishedFiles(store, by, overwrite=overwrite, patience=TRIES_TWICE)
    try:
        files.begin()
        replaces = files.abort([clear], 0) if clear else ()
        made = staged(store, files, names[0], "new", replaces)
        return Next(committer, given(made), overwrite, bucket)
    except StoreError:
        return Next(writer, by, names[1:], overwrite, bucket, clear) if names[1:] else None


def remover(process: Process, by: RunOfSink, names: tuple[str, ...], again: int = 1) -> Next | None:
    """A driver that goes back to a checkpoint before these commits."""
    files = PublishedFiles(Below(process), by, overwrite=False, patience=TRIES_TWICE)
    try:
        files.take_out(names)
    except StoreError:
        return Next(remover, by, names, again - 1) if again else None
    for name in names:
        process.says_for_good("taken out", name)
    return None


def exact_reader(process: Process, bucket: bool = False) -> None:
    """Reads what the log says, file by file."""
    store = target(process, bucket)
    try:
        files: tuple[File, ...] = files_of_readers(store, patience=0).files
        log = CommitLog(store, TRIES_TWICE)
        bodies = [store.read(file.name) for file in files]
        removed = {name for _, entry in _all(log) for name in entry.removed}
    except (CheckpointNotFound, StoreError):
        return
    for file, body in zip(files, bodies, strict=True):
        if body is None and file.name not in removed:
            process.says("misses", file.name)


def _all(log: CommitLog) -> Iterable[tuple[int, LogEntry]]:
    log.read()
    return log.since(0)


def settler(process: Process, todo: tuple[tuple[bytes, bool], ...], bucket: bool = False) -> Next | None:
    """Alone in the end: commits what completed checkpoints hold, aborts what else is staged."""
    if todo:
        (prepared, overwrite), rest = todo[0], todo[1:]
        committer(process, prepared, overwrite, bucket)
        return Next(settler, rest, bucket)
    files = PublishedFiles(target(process, bucket), LAST, overwrite=False, patience=TRIES_TWICE)
    files.begin()
    files.abort([left.name for left in files.leftovers()], 0)
    return None


LAST = RunOfSink(history="memory://lake/jobs/daily/runs/last", run="last", uid="report")
