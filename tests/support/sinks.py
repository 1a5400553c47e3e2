"""A file sink in any store, with a log as Spark writes it. Runs anywhere."""

from __future__ import annotations

import json
from unittest import mock

from airflow_checkpoint_provider.file_sink.log import LOG, FileSinkLog
from airflow_checkpoint_provider.file_sink.store_folder import StoreFolder
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.location.foreign import HEADER
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark.queries.sinks import files as file_sink
from airflow_checkpoint_provider.spark.queries.sinks.base import WayBack
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.storage import Store

FOLDER = "out"


def folder_in(store: Store) -> StoreFolder:
    """Return the folder of the sink."""
    return StoreFolder(Location(store, FOLDER))


def write_batch(store: Store, batch: int, files: int = 1, compacts: tuple[str, ...] = ()) -> None:
    """Write the files of a batch, and its entry. With ``compacts``, the entry is compacted, and holds these lines, too."""
    names = [f"day={batch}/part-{number}" for number in range(files)]
    for name in names:
        store.overwrite(f"{FOLDER}/{name}", rows_of(name))
    own = [
        json.dumps({"path": f"{store.uri}/{FOLDER}/{name}", "size": len(rows_of(name)), "action": "add"})
        for name in names
    ]
    entry = f"{batch}.compact" if compacts else str(batch)
    store.overwrite(f"{FOLDER}/{LOG}/{entry}", "\n".join((HEADER, *compacts, *own)).encode())


def rows_of(name: str) -> bytes:
    """Return the content of a file of the sink."""
    return f"rows of {name}".encode()


def sink_in(store: Store) -> FileStreamSink:
    """Return the sink as a driver has it, without Spark."""
    with mock.patch.object(file_sink, "SinkLog", return_value=FileSinkLog(folder_in(store))):
        return FileStreamSink(mock.Mock(), "rows", Target("parquet", FOLDER))


def saved_at(store: Store, batch: int, newest_file: str | None) -> QueryDetail:
    """Return the query as a checkpoint after ``batch`` holds it."""
    return QueryDetail(
        location="query/rows/1-abc",
        batch=batch,
        begun=batch,
        sink="parquet",
        path=folder_in(store).uri,
        sources={},
        watermark_ms=0,
        newest_file=newest_file,
    )


def way_back(gone_back: GoneBack, number: int, location: str = "query/rows/2-def") -> WayBack:
    """Return a way back of the job ``orders``."""
    return WayBack("orders", location, gone_back, number)


def named_by(store: Store) -> list[str]:
    """Return the files that a reader of the sink sees, each by its path below it. Each of them is there."""
    log = FileSinkLog(folder_in(store))
    names = [log.below(file) for file in log.files()]
    for name in names:
        assert store.read(f"{FOLDER}/{name}") == rows_of(name), f"{name} is gone"
    return names
