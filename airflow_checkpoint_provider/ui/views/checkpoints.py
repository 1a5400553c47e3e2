"""The table of checkpoints, with Flink's columns, and the files of one. Runs in Airflow (API server); no I/O, no HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.protocol.checkpoint_records import PENDING, Checkpoint
from airflow_checkpoint_provider.protocol.kinds import BARRIER, kind_named
from airflow_checkpoint_provider.protocol.metadata import Seal, StateEntry, kind_in_words
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import messages, replay, state_messages
from airflow_checkpoint_provider.text.summary_table import row
from airflow_checkpoint_provider.text.units import NONE, at_barrier, between, duration, plural, size, value_text
from airflow_checkpoint_provider.ui.polling import HistoryReading
from airflow_checkpoint_provider.ui.views.commands import Commands, ShownCommand
from airflow_checkpoint_provider.ui.views.jobs import Label

Values = Mapping[int, Mapping[str, Any]]
"""Values and states of registered objects: by the id of their checkpoint, then by uid."""


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
    value: str


@dataclass(frozen=True)
class Cost:
    """How long a checkpoint took, and how large it is."""

    took: str = NONE
    synchronous: str = NONE
    asynchronous: str = NONE
    waiting: str = NONE
    size: str = NONE
    new: str = NONE
    in_flight: str = NONE


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint. ``story`` are the lines of the log about it, ``waits_for`` names the step for which it waits while it is pending."""

    id: int
    run: str
    attempt: int
    kind: str
    by: str
    state: Label
    triggered_at: str
    acknowledged: str
    cost: Cost
    waits_for: str
    story: Sequence[str]
    states: Sequence[StateRow]
    pointer: str
    commands: Sequence[ShownCommand]

    @property
    def name(self) -> str:
        return f"chk-{self.id}"


def checkpoint_row(
    reading: HistoryReading, checkpoint: Checkpoint, commands: Commands, values: Mapping[str, Any] | None = None
) -> CheckpointRow:
    """Return the row of a checkpoint of a history that was read. ``values``: by uid, as far as they are known."""
    state, request = reading.found.state, checkpoint.request
    about, pointer = row(state, checkpoint), reading.found.pointer(reading.root, checkpoint)
    return CheckpointRow(
        id=checkpoint.id,
        run=about.run,
        attempt=about.attempt,
        kind=_kind(checkpoint),
        by=at_barrier(request.barrier) if request.origin == BARRIER else f"{request.origin} {request.owner}".strip(),
        state=Label.of(about.state),
        triggered_at=checkpoint.triggered_at,
        acknowledged=_acknowledged(reading, checkpoint),
        cost=_cost(state, checkpoint),
        waits_for=_waits_for(reading, checkpoint),
        story=_story(state, reading, checkpoint),
        states=[_state_row(entry, values or {}) for entry in checkpoint.states],
        pointer=pointer or "",
        commands=commands.of_checkpoint(checkpoint, pointer),
    )


@dataclass(frozen=True)
class Split:
    """The parts of a completed checkpoint's duration, in seconds; None is unknown, and ``unsplit`` is the rest of the duration.

    ``waiting`` is the time in the queue, and until its queries had reached a common cut. The job stood still for ``synchronous``,
    and went on beside ``asynchronous``.
    """

    waiting: float | None
    synchronous: float
    asynchronous: float | None
    unsplit: float = 0.0

    @property
    def duration(self) -> float:
        return (self.waiting or 0.0) + self.synchronous + (self.asynchronous or 0.0) + self.unsplit


def split(state: State, checkpoint: Checkpoint) -> Split:
    """Return the parts of a completed checkpoint. They begin with the request for it, or with its barrier."""
    about = row(state, checkpoint)
    queued = between(checkpoint.queued_at, checkpoint.triggered_at)
    synchronous = about.sync_s or 0.0
    if about.async_s is None:  # it was triggered before its barrier, whose time is not known
        triggered = between(checkpoint.triggered_at, checkpoint.completed_at)
        synchronous = min(synchronous, triggered)
        return Split(None, synchronous, None, queued + triggered - synchronous)
    # It was triggered after its synchronous part; its queries looked for a cut after that
    aligned = min(about.async_s, max((entry.measures.alignment_s for entry in checkpoint.states), default=0.0))
    return Split(queued + aligned, synchronous, about.async_s - aligned)


def _cost(state: State, checkpoint: Checkpoint) -> Cost:
    if not checkpoint.completed_at:
        ended = checkpoint.ended_at
        return Cost(duration(between(checkpoint.triggered_at, ended)) if ended else NONE)
    parts = split(state, checkpoint)
    waiting, asynchronous = (
        NONE if seconds is None else duration(seconds) for seconds in (parts.waiting, parts.asynchronous)
    )
    return Cost(
        duration(parts.duration),
        duration(parts.synchronous),
        asynchronous,
        waiting,
        size(checkpoint.bytes),
        size(checkpoint.new_bytes),
        size(checkpoint.in_flight_bytes),
    )


def _kind(checkpoint: Checkpoint) -> str:
    kind = kind_named(checkpoint.kind)
    words = [kind.words, "stop"] if kind.suspends else [kind.words]
    words += [f"'{checkpoint.request.name}'"] if checkpoint.request.name else []
    words += ["pinned"] if checkpoint.request.pinned else []
    words += ["gated"] if checkpoint.request.gated else []
    return ", ".join(words)


def _acknowledged(reading: HistoryReading, checkpoint: Checkpoint) -> str:
    """Return how many of its applications have acknowledged it: ``1 of 1``."""
    missing_then = checkpoint.abort_cause.missing if checkpoint.abort_cause else ()
    waits_for = reading.missing.get(checkpoint.id, missing_then)
    everybody = len(checkpoint.plan)
    return f"{everybody if checkpoint.completed_at else everybody - len(waits_for)} of {everybody}"


def _waits_for(reading: HistoryReading, checkpoint: Checkpoint) -> str:
    if checkpoint.status != PENDING:
        return ""
    missing = [application or "the driver" for application in reading.missing.get(checkpoint.id, ())]
    if not missing:
        return "its finalize task" if checkpoint.request.gated else "its completion: all have acknowledged it"
    return f"the acknowledgement of {', '.join(missing)}"


def _story(state: State, reading: HistoryReading, checkpoint: Checkpoint) -> list[str]:
    # The effect of an abort is described by today's state, so only while no checkpoint has completed since.
    counts = checkpoint in state.failed()
    lines = messages.aborted(state, checkpoint, effect=counts)
    lines += [messages.checkpoint_line(checkpoint)] if checkpoint.completed_at else []
    return [*lines, *replay.lines(checkpoint, reading.earliest)]


def _state_row(entry: StateEntry, values: Mapping[str, Any]) -> StateRow:
    return StateRow(
        uid=entry.uid,
        kind=kind_in_words(entry.kind),
        rows=f"{entry.rows:,}",
        size=size(entry.bytes),
        since=f"chk-{entry.measures.checkpoint}",
        barrier=state_messages.reached(entry, at_barrier(entry.measures.barrier)),
        work=duration(entry.measures.work_s),
        value=value_text(values[entry.uid]) if entry.uid in values else "",
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
        (uid, file_set.path, file)
        for uid, state in sorted(seal.states.items())
        for file_set in state.file_sets
        for file in file_set.files
    ]
    rows = [
        FileRow(uid, f"{path}/{file.name}", f"{file.rows:,}", size(file.bytes))
        for uid, path, file in files[:MOST_FILES]
    ]
    total = f"{plural(len(files), 'file')}, {size(sum(state.bytes for state in seal.states.values()))}"
    return FilesPage(checkpoint, rows, total, max(0, len(files) - MOST_FILES))
