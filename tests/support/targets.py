"""A target of file sinks without Spark: rows are staged as Spark would leave them. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles, files_of_readers, is_hidden
from airflow_checkpoint_provider.sinks.staging import STAGING, rows_key
from airflow_checkpoint_provider.storage import Store

MONDAY = RunOfSink(history="memory://lake/jobs/daily/runs/monday", run="monday", uid="report")
TUESDAY = replace(MONDAY, history="memory://lake/jobs/daily/runs/tuesday", run="tuesday")


def name_of(number: int, epoch: int = 1) -> str:
    """Return the name of a transaction."""
    return f"{epoch}-{number:016x}"


def files_of(store: Store, by: RunOfSink = MONDAY, *, overwrite: bool = False) -> PublishedFiles:
    """Return the files of a run that has begun to write, as a new process sees them."""
    files = PublishedFiles(store, by, overwrite=overwrite, patience=0)
    files.begin()
    return files


def staged(files: PublishedFiles, name: str, *rows: str, replaces: tuple[str, ...] = ()) -> Transaction:
    """Stage one file for each text of ``rows``, and return the transaction."""
    begun = files.stage(name)
    for number, text in enumerate(rows):
        files.store.create(f"{rows_key(name)}/day={number}/part-{number}.csv", text.encode())
    files.store.create(f"{rows_key(name)}/_SUCCESS", b"")
    origin, epoch = Origin(plan="p", inputs="i"), int(name.split("-", maxsplit=1)[0])
    prepared = files.prepared(begun)
    return Transaction(
        name=name, version=epoch, run=files.by.run, write=0, origin=origin, prepared=prepared, replaces=replaces
    )


def visible(store: Store) -> list[str]:
    """Return the rows that a reader finds who lists the folder."""
    return sorted(
        (store.read(found.key) or b"").decode() for found in store.list("") if not is_hidden(found.key) and found.size
    )


def logged(store: Store) -> list[str]:
    """Return the rows that the log of the target says are there."""
    files = files_of_readers(store, patience=0).files
    return sorted((store.read(file.name) or b"(missing)").decode() for file in files if file.bytes)


def left(store: Store) -> list[str]:
    """Return what is staged."""
    return [found.key for found in store.list(STAGING)]
