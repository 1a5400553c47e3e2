"""The files of a query whose state gets another number of partitions. Runs anywhere.

Spark's own tool writes the state anew, as a batch that reads nothing. No sink has that batch, and Spark 4.2 cannot compact the log of a
file sink that lacks a batch. So the tool works in a draft, in which no query runs. The query's location gets the new state under the number
of the batch before, which the sink has.

Spark's tool also leaves the old number in the metadata of most operators. The metadata that is written here names the new one.
"""

from __future__ import annotations

from airflow_checkpoint_provider.location import state_metadata
from airflow_checkpoint_provider.location.copying import copy_files
from airflow_checkpoint_provider.location.files import (
    OFFSETS,
    SCHEMA,
    Location,
    LocationFiles,
    Position,
    hadoop_uri,
    needed_files,
)

PARTITIONS = "spark.sql.shuffle.partitions"


def copy_logs(draft: Location, own: Location, batch: int) -> None:
    """Copy everything but the state. ``draft`` is at ``batch``; Spark's tool has not run there yet."""
    found = LocationFiles(draft)
    names = needed_files(found, Position(batch, batch))
    copy_files(found, own, [name for name in names if not name.startswith("state/")])


def take_state(draft: Location, own: Location, batch: int, partitions: int) -> None:
    """Copy the state that Spark's tool has written in the draft as batch ``batch + 1``. In ``own`` it becomes the state of ``batch``.

    Raises ``Damaged`` if a partition is missing.
    """
    found, written = LocationFiles(draft), batch + 1
    schemas = [name for name in found.sizes if SCHEMA.fullmatch(name)]
    snapshots = list[str]()
    for name in state_metadata.newest(found.sizes).values():
        what = draft.key_of(name)
        body = state_metadata.with_partitions(draft.read(name), partitions, what)
        for folder in state_metadata.stores(body, name, what):
            snapshots += found.snapshot(folder, written + 1)
        if state_metadata.names_paths(name):
            body = state_metadata.at(hadoop_uri(own.uri), body, name, schemas, what)
        own.store.overwrite(own.key_of(state_metadata.renamed(name, batch)), body)
    copy_files(found, own, [*schemas, *snapshots], -1)
    own.store.overwrite(own.key_of(f"{OFFSETS}/{batch}"), draft.read(f"{OFFSETS}/{written}"))
