"""A job in a list: its newest run, and where its next attempt starts. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.text.summary_table import status
from airflow_checkpoint_provider.text.units import NO_HEARTBEAT, between

_AT_WORK = ("running", "launched")
_FIRST = (*_AT_WORK, "suspended")


@dataclass(frozen=True)
class JobLine:
    """One job; None is unknown, or never happened."""

    job: str
    run: str
    item: str | None
    state: str
    attempt: int
    last_checkpoint: str | None
    age_s: float | None
    next_start: str | None
    at: str


def job_line(found: FoundHistory, now: str, *, silent: bool) -> JobLine:
    """Return the line of a history. ``silent``: its driver is on record as alive, and does not beat."""
    state = found.state
    last = state.checkpoint(state.newest_completed)
    run = state.run(found.newest_run)
    ends_here = bool(state.of_one_run and run and run.outcome == "finished")
    point = None if ends_here else state.restore_point()
    return JobLine(
        job=state.job,
        run=found.newest_run,
        item=state.item,
        state=_state(found) + (NO_HEARTBEAT if silent else ""),
        attempt=state.last_epoch,
        last_checkpoint=f"chk-{last.id}" if last else None,
        age_s=between(last.completed_at, now) if last else None,
        next_start=str(point) if point else None,
        at=state.at,
    )


def at_work(found: FoundHistory) -> bool:
    """Return whether a driver is at work, by the journal. It may be dead."""
    return _state(found) in _AT_WORK


def on_call(found: FoundHistory) -> tuple[bool, str]:
    """Return the key by which jobs are listed, the greatest first: jobs that run, start or are suspended, then those that moved last."""
    return _state(found) in _FIRST, found.state.at


def _state(found: FoundHistory) -> str:
    """Return the state of the newest run in the journal."""
    if found.state.closing:
        return "closed"
    if found.state.suspended:
        return "suspended"
    return status(found.state, found.state.run(found.newest_run))
