"""The list of jobs, and the states in which runs are. Runs in Airflow (API server); no I/O, no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import sink_messages
from airflow_checkpoint_provider.text.job_list import at_work, job_line, on_call
from airflow_checkpoint_provider.text.units import MINUTE, TONES, between, plural
from airflow_checkpoint_provider.ui.polling import HistoryReading
from airflow_checkpoint_provider.ui.views.commands import ShownCommand, of_storage

LAST_SEEN = "running, last seen"


@dataclass(frozen=True)
class Label:
    """A state as people read it, the tone of its colour, and, if the state is not certain now, the time ``at`` which it held."""

    text: str
    tone: str
    at: str = ""

    @classmethod
    def of(cls, state: str, *, wrong: bool = False) -> Label:
        return cls(state, "bad" if wrong else TONES.get(state, "quiet"))


@dataclass(frozen=True)
class JobRow:
    """The newest run of a job, or an item of it. Empty texts are unknown, or never happened."""

    reference: HistoryReference
    job: str
    run: str
    state: Label
    attempt: int
    checkpoint: str
    completed_at: str
    unprotected_since: str
    next_start: str
    savepoints: int
    pending: int
    order: tuple[bool, str]
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class BrokenRow:
    """A job whose history cannot be read, and why: what the ``code`` of the error means, then its text. ``passing``: the
    storage may answer again soon.
    """

    job: str
    problem: str
    code: str = ""
    meaning: str = ""
    passing: bool = False


@dataclass(frozen=True)
class Storage:
    """The jobs of one connection, whose name is empty if the user may not know it. ``problem`` says why it cannot be listed.

    ``unread`` says how many jobs are being read, and ``left_out`` how many are not read; no number if the user may not know.
    """

    connection: str
    rows: Sequence[JobRow] = ()
    broken: Sequence[BrokenRow] = ()
    problem: str = ""
    unread: str = ""
    left_out: str = ""

    @property
    def commands(self) -> Sequence[ShownCommand]:
        return of_storage(self.connection) if self.connection else ()

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to show, so that the connection is not shown either."""
        return not (self.rows or self.broken or self.problem or self.unread or self.left_out)


@dataclass(frozen=True)
class JobsPage:
    """All jobs that a user may see."""

    storages: Sequence[Storage] = field(default_factory=tuple)

    @property
    def more(self) -> bool:
        """Return whether there are jobs after these."""
        return any(storage.left_out for storage in self.storages)

    @property
    def moves(self) -> bool:
        """Return whether a job runs or waits, or something could not be read now."""
        return any(
            storage.unread
            or storage.problem
            or any(_moves(row) for row in storage.rows)
            or any(row.passing for row in storage.broken)
            for storage in self.storages
        )


def _moves(row: JobRow) -> bool:
    return row.state.tone == "busy" or row.state.text == "running"


def job_row(connection: str, reading: HistoryReading, now: str) -> JobRow:
    """Return the row of a history that was read."""
    found = reading.found
    last_seen = last_seen_long_ago(reading, now)
    silent = at_work(found) and reading.alive is False
    line = job_line(found, now, silent=silent)
    last = found.state.checkpoint(found.state.newest_completed)
    return JobRow(
        reference=HistoryReference(connection, found.keys.prefix),
        job=line.job,
        run=line.run + (f", item {line.item}" if line.item else ""),
        state=Label(LAST_SEEN, "busy", last_seen) if last_seen else Label.of(line.state, wrong=silent),
        attempt=line.attempt,
        checkpoint=line.last_checkpoint or "",
        completed_at=last.completed_at if last else "",
        unprotected_since=unprotected_since(reading),
        next_start=line.next_start or "",
        savepoints=len(found.state.savepoints),
        pending=len(found.state.pending),
        order=on_call(found),
        problems=problems(reading),
    )


def last_seen_long_ago(reading: HistoryReading, now: str) -> str:
    """Return when a driver was last seen, if it is not known yet whether it lives; empty if that is not long ago.

    Clocks of two machines are compared here. So this decides nothing; it only says that the state is not certain.
    """
    if not at_work(reading.found) or reading.alive is not None:
        return ""
    seen = (reading.beat and reading.beat.at) or reading.found.state.at
    return seen if between(seen, now) > MINUTE else ""


def problems(reading: HistoryReading) -> list[str]:
    """Return the problems that need a person, besides the state of the job."""
    failed, refusal = _failed_now(reading.found.state), reading.beat.refusal if reading.beat else None
    works, found = at_work(reading.found), list[str]()
    if works and reading.alive is False and not refusal:
        found.append("its driver shows no sign of life")
    if reading.found.state.suspended is not None:
        found.append("suspended: nothing starts it before a restore")
    if reading.not_followed:
        found.append(reading.not_followed)
    found += sink_messages.uncommitted(reading.found.state)
    if refusal:
        found.append(f"its driver was refused: {refusal.text}  [{refusal.code}]")
    if failed:
        in_a_row = (
            f"{plural(len(failed), 'checkpoint')} failed in a row, at last chk-{failed[-1].id}: {failed[-1].reason}"
        )
        found.append(f"not protected: {in_a_row}" if works else in_a_row)
    return [printable(problem) for problem in found]


def _failed_now(state: State) -> tuple[Checkpoint, ...]:
    """Return the failures in a row of the newest attempt, unless it has finished or its task has launched another."""
    launch = state.current_launch()
    attempt = state.attempt_of(launch.number) if launch else None
    return state.failed(attempt.epoch) if attempt and attempt.outcome != "finished" else ()


def unprotected_since(reading: HistoryReading) -> str:
    """Return since when the work of a running job would be lost in a crash; empty if none runs."""
    running = at_work(reading.found) and reading.alive is not False
    return reading.beat.protected_since if running and reading.beat else ""
