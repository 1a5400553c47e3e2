"""The health of a job: how old its newest saved state is, and what a crash would cost. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.protocol.launch_records import Launch
from airflow_checkpoint_provider.protocol.lifetime import FINISHED
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.tries import dying
from airflow_checkpoint_provider.protocol.wording import suspension, title
from airflow_checkpoint_provider.text.units import ago, between, coded, day_and_time, duration, plural

CODES = {"CKP246": "A health sensor found the job healthy: its newest checkpoint is young enough."}


@dataclass(frozen=True)
class SavedState:
    """The moment up to which the work of a job is saved, and by what: ``chk-7``, or a word for it."""

    at: str
    by: str


def saved_state(state: State) -> SavedState:
    """Return what saves the work of the job: its newest completed checkpoint, the end of a run that finished, or the point to which a
    restore or a clear went back. Before the first of them: the launch of its first driver.

    Checkpoints of drivers that die again and again, and add nothing, do not count.
    """
    dead = dying(state)
    launches = {launch.number for launch in dead}
    vain = {attempt.epoch for attempt in state.attempts if attempt.launch in launches}
    moments = [
        SavedState(checkpoint.completed_at, f"chk-{checkpoint.id}")
        for checkpoint in state.checkpoints
        if checkpoint.completed_at and checkpoint.branch == state.branch.number and vain.isdisjoint(checkpoint.epochs)
    ]
    moments += _start_of(state, dead[:1])
    moments += [
        SavedState(run.ended_at, f"the end of run {run.key}") for run in state.runs if run.outcome == "finished"
    ]
    if state.branch.at:
        moments.append(SavedState(state.branch.at, f"a restore of {state.branch.base or 'nothing'}"))
    return max(moments, key=lambda moment: moment.at) if moments else _beginning(state)


def _start_of(state: State, first: tuple[Launch, ...]) -> list[SavedState]:
    """Return when the first of the dying drivers was launched, if the checkpoint from which it started is not listed any more."""
    return [
        SavedState(launch.at, f"what was there before try {launch.latest_try} of {launch.spec.owner}")
        for launch in first
        if launch.restore_point
        and launch.restore_point.pointer is None
        and state.checkpoint(launch.restore_point.id) is None
    ]


def _beginning(state: State) -> SavedState:
    """Return when a job began that has saved nothing."""
    if not state.launches:
        return SavedState(state.at, "the close of its history")
    first, run = state.launches[0], state.runs[0]
    at = first.at if first.number == 1 else min(first.at, run.started_at)  # older launches are not listed any more
    return SavedState(at, "its first launch, and nothing newer since")


def is_over(state: State) -> bool:
    """Return whether the history is that of one run, which has finished: nothing is left to lose."""
    closed = state.closing is not None and state.closing.reason == FINISHED
    return closed or bool(state.of_one_run and state.runs and state.runs[-1].outcome == "finished")


def cost(beat: Beat | None) -> float:
    """Return the seconds of work that a crash of the driver would cost at its newest heartbeat; 0 if that does not say it.

    Both times are from the driver's clock.
    """
    return between(beat.protected_since, beat.at) if beat else 0.0


def problems(state: State, beat: Beat | None, now: str, max_age: float, unprotected: float | None) -> list[str]:
    """Return what is wrong with a job; empty if it is healthy. ``beat`` is the newest of the driver that runs by the journal.

    ``max_age`` and ``unprotected`` are in seconds.
    """
    if is_over(state):
        return []
    saved, found = saved_state(state), list[str]()
    age, costs = between(saved.at, now), cost(beat)
    if age > max_age:
        found.append(
            f"its work is saved up to {day_and_time(saved.at)} ({saved.by}), {ago(age)} ago; at most {duration(max_age)} are allowed"
            f"{_why(state, beat, now)}"
        )
    if unprotected is not None and beat is not None and costs > unprotected:
        found.append(
            f"NOT PROTECTED: a crash of attempt {beat.epoch} would cost {duration(costs)} of work; at most {duration(unprotected)} are"
            " allowed"
        )
    return found


def unhealthy(state: State, found: list[str]) -> str:
    """Say what is wrong with a job."""
    return f"{title(state, state.scope)} is not healthy: {'; and '.join(found)}{_failures(state)}"


def healthy(state: State, beat: Beat | None, now: str) -> str:
    """Say how the job is."""
    if is_over(state):
        return coded(f"{title(state, state.scope)} is healthy: its run has finished", "CKP246")
    saved = saved_state(state)
    costs = f"; a crash now would cost {duration(cost(beat))} of work" if beat else ""
    text = f"its work is saved up to {day_and_time(saved.at)} ({saved.by}), {ago(between(saved.at, now))} ago{costs}"
    return coded(f"{title(state, state.scope)} is healthy: {text}", "CKP246")


def _why(state: State, beat: Beat | None, now: str) -> str:
    """Say what the journal knows of the reason."""
    if state.suspended:
        return f". The job is suspended {suspension(state)}"
    if dead := dying(state):
        return f". Its newest {plural(len(dead), 'driver')} add nothing to that: each repeats the work of the one before it, and dies"
    if beat is not None:
        return f". The driver's last heartbeat came {ago(between(beat.at, now))} ago"
    starting = state.starting()
    if starting:
        return f". A driver was launched {day_and_time(starting.at)}, and has not attached"
    return ". No driver runs" if not any(state.living()) else ". Its driver has no heartbeat"


def _failures(state: State) -> str:
    failed = state.failed()
    if not failed:
        return ""
    last = failed[-1]
    return f". {plural(len(failed), 'checkpoint')} failed in a row, at last chk-{last.id}: {last.abort_cause}"
