"""Acknowledgements as a driver makes them, and whole checkpoints in a store. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import (
    Acknowledgement,
    Measures,
    StageDetail,
    StateSnapshot,
    Versions,
)
from airflow_checkpoint_provider.storage.base import Store
from tests.support.histories import launch, start
from tests.support.journals import open_journal

ROWS = b"rows of a part file"


def file_set(uid: str, epoch: int = 1, nonce: str = "n0nce", files: int = 2) -> FileSet:
    names = (f"part-{n:05d}.zstd.parquet" for n in range(files))
    return FileSet(
        path=file_set_path(uid, epoch, nonce), files=tuple(File(name=name, bytes=len(ROWS), rows=7) for name in names)
    )


def stage(uid: str, number: int, *, made_of: FileSet | None = None, **other: Any) -> StateSnapshot:
    """A stage that was computed for checkpoint ``number``."""
    made_of = made_of or file_set(uid)
    detail = StageDetail(
        plan="sha256 of the plan",
        inputs="sha256 of what its leaves read",
        python=False,
        application="sha256 of the script",
        schema='{"type":"struct","fields":[]}',
        codec="zstd",
    )
    measures = Measures(
        checkpoint=number, barrier=f"stage '{uid}'", work_s=4320.0, sync_s=0.25, new_bytes=made_of.bytes
    )
    return StateSnapshot(
        uid=uid, kind="stage", run="day-1", file_sets=(made_of,), measures=measures, stage=detail, **other
    )


def value(uid: str, number: int, holds: Any) -> StateSnapshot:
    return StateSnapshot(uid=uid, kind="value", run="day-1", value=holds, measures=Measures(checkpoint=number))


def acknowledgement(
    number: int, *states: StateSnapshot, epoch: int = 1, nonce: str = "ours", **other: Any
) -> Acknowledgement:
    known: dict[str, Any] = {
        "inc": "1ncarnation",
        "application": "",
        "run": "day-1",
        "versions": Versions(package="0.1", spark="4.2.0"),
    }
    return Acknowledgement(id=number, epoch=epoch, nonce=nonce, states=states, **known | other)


def upload(store: Store, coordinator: Coordinator, file_sets: Iterable[FileSet]) -> None:
    """The files that an acknowledgement names, as Spark would have written them."""
    for one in file_sets:
        for file in one.files:
            store.create(f"{coordinator.keys.file_set(one.path)}/{file.name}", ROWS)


def driver(store: Store, try_number: int = 1, *, scope: str = "", **checkpointing: Any) -> Coordinator:
    """The coordinator of a driver that was launched and has started with the options ``checkpointing``."""
    journal = open_journal(store, place="driver")
    journal.append(launch(try_number=try_number, scope=scope))
    in_force = CheckpointConfig(**checkpointing).to_json()
    journal.append(start(try_number=try_number, checkpointing=in_force))
    return Coordinator(journal, journal.state.last_epoch)


def bystander(store: Store) -> Coordinator:
    """A task's, or a person's."""
    coordinator = Coordinator(open_journal(store))
    coordinator.journal.catch_up()
    return coordinator


def take(coordinator: Coordinator, *handed_on: StateSnapshot) -> int:
    """A whole checkpoint: files, trigger, acknowledgement, seal, completed. One new stage ``s<id>``, and what is handed on."""
    number = coordinator.state.next_id
    epoch = coordinator.epoch or 1
    new = stage(f"s{number}", number, made_of=file_set(f"s{number}", epoch))
    upload(coordinator.store, coordinator, new.file_sets)
    assert coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0)) == number
    coordinator.acknowledge(acknowledgement(number, new, *handed_on, epoch=epoch))
    coordinator.complete(number)
    return number
