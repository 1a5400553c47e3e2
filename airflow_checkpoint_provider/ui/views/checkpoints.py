"""The table of checkpoints, with Flink's columns, and the files of one. Runs in Airflow (API server); no I/O, no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.protocol.kinds import BARRIER, kind_named
from airflow_checkpoint_provider.protocol.metadata import Seal, StateEntry, kind_in_words
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, Checkpoint, State
from airflow_checkpoint_provider.text import messages, replay
from airflow_checkpoint_provider.text.summary_table import row
from airflow_checkpoint_provider.text.units import NONE, at_barrier, batch, duration, plural, size
from airflow_checkpoint_provider.ui.polling import Reading
from airflow_checkpoint_provider.ui.views.commands import Command, Commands
from airflow_checkpoint_provider.ui.views.jobs import Label

UNKNOWN = -1  # of a number in the statistics


@dataclass(frozen=True)
class StateRow:
    """A state that a checkpoint holds."""

    uid: str
    kind: str
    rows: str
    size: str
    since: str
    barrier: str
    work: str


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint. ``story`` are the lines of the log about it, ``waits_for`` is what it waits for while it is pending."""

    id: int
    run: str
    attempt: int
    kind: str
    by: str
    state: Label
    triggered_at: str
    acknowledged: str
    took: str
    synchronous: str
    asynchronous: str
    waiting: str
    size: str
    new: str
    in_flight: str
    at: str
    waits_for: str
    story: Sequence[str]
    states: Sequence[StateRow]
    pointer: str
    has_files: bool
    commands: Sequence[Command]

    @property
    def name(self) -> str:
        return f"chk-{self.id}"


def checkpoint_row(reading: Reading, checkpoint: Checkpoint, commands: Commands) -> CheckpointRow:
    """Return the row of a checkpoint of a history that was read."""
    state, about, line = reading.found.state, row(reading.found.state, checkpoint), statistics.entry(checkpoint)
    completed, request = bool(checkpoint.completed_at), checkpoint.request
    pointer = reading.found.pointer(reading.root, checkpoint)
    waiting_s = line["time_in_queue"] / 1000 + max(
        (entry.measures.alignment_s for entry in checkpoint.states), default=0.0
    )
    return CheckpointRow(
        id=checkpoint.id,
        run=about.run,
        attempt=about.attempt,
        kind=_kind(checkpoint),
        by=at_barrier(request.barrier) if request.origin == BARRIER else f"{request.origin} {request.owner}".strip(),
        state=Label.of(about.state),
        triggered_at=checkpoint.triggered_at,
        acknowledged=_acknowledged(reading, checkpoint),
        took=NONE if line["end_to_end_duration"] == UNKNOWN else duration(line["end_to_end_duration"] / 1000),
        synchronous=NONE if about.sync_s is None else duration(about.sync_s),
        asynchronous=NONE if about.async_s is None else duration(about.async_s),
        waiting=duration(waiting_s) if completed else NONE,
        size=size(checkpoint.bytes) if completed else NONE,
        new=size(checkpoint.new_bytes) if completed else NONE,
        in_flight=size(checkpoint.in_flight_bytes) if completed else NONE,
        at=about.position or NONE,
        waits_for=_waits_for(state, reading, checkpoint),
        story=_story(state, reading, checkpoint),
        states=[_state_row(entry) for entry in checkpoint.states],
        pointer=pointer or "",
        has_files=pointer is not None,
        commands=commands.of_checkpoint(checkpoint, pointer),
    )  # fmt: skip


def _kind(checkpoint: Checkpoint) -> str:
    kind = kind_named(checkpoint.kind)
    words = [kind.name.replace("_", " ")]
    words += [f"'{checkpoint.request.name}'"] if checkpoint.request.name else []
    words += ["pinned"] if checkpoint.request.pinned else []
    words += ["gated"] if checkpoint.request.gated else []
    return ", ".join(words)


def _acknowledged(reading: Reading, checkpoint: Checkpoint) -> str:
    """Return how many of its applications have acknowledged it: ``1 of 1``."""
    waits_for = reading.missing.get(checkpoint.id, checkpoint.missing)
    everybody = len(checkpoint.plan)
    return f"{everybody if checkpoint.completed_at else everybody - len(waits_for)} of {everybody}"


def _waits_for(state: State, reading: Reading, checkpoint: Checkpoint) -> str:
    if checkpoint.status != PENDING:
        return ""
    missing = [application or "the driver" for application in reading.missing.get(checkpoint.id, ())]
    if not missing:
        return "its finalize task" if checkpoint.request.gated else "its completion: all have acknowledged it"
    return f"the acknowledgement of {', '.join(missing)}"


def _story(state: State, reading: Reading, checkpoint: Checkpoint) -> list[str]:
    lines = messages.aborted(state, checkpoint) if checkpoint.status == ABORTED else []
    lines += [messages.checkpoint_line(checkpoint)] if checkpoint.completed_at else []
    return [*lines, *replay.lines(checkpoint, reading.earliest)]


def _state_row(entry: StateEntry) -> StateRow:
    return StateRow(
        uid=entry.uid,
        kind=kind_in_words(entry.kind),
        rows=f"{entry.rows:,}",
        size=size(entry.bytes),
        since=f"chk-{entry.measures.checkpoint}",
        barrier=at_barrier(entry.measures.barrier) if entry.batch is None else batch(entry.batch),
        work=duration(entry.measures.work_s),
    )


# -- files -------------------------------------------------------------------------------------------------------------

MOST_FILES = 1000  # that a page lists


@dataclass(frozen=True)
class FileRow:
    """A file of a state."""

    state: str
    name: str
    rows: str
    size: str


@dataclass(frozen=True)
class FilesPage:
    """The files of a checkpoint. ``left_out`` are not listed."""

    checkpoint: CheckpointRow
    files: Sequence[FileRow]
    total: str
    left_out: int


def files_page(checkpoint: CheckpointRow, seal: Seal) -> FilesPage:
    """Return the files that the metadata of a checkpoint names."""
    files = [
        FileRow(uid, f"{file_set.path}/{file.name}", f"{file.rows:,}", size(file.bytes))
        for uid, state in sorted(seal.states.items())
        for file_set in state.file_sets
        for file in file_set.files
    ]
    total = f"{plural(len(files), 'file')}, {size(sum(state.bytes for state in seal.states.values()))}"
    return FilesPage(checkpoint, files[:MOST_FILES], total, max(0, len(files) - MOST_FILES))
