"""The lifetime of a history: how long it is needed, and which commands a closed history accepts. Pure. Runs anywhere.

A history of one run is over for good when its run finished or was given up. A run is given up when all its attempts
are over and nothing has happened for longer than a failed run is kept. A history that all runs share is never over;
where some runs share it by a key, it is over when the age in its author's policy has passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import KeepWithin, Retention
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.state import Closing, State
from airflow_checkpoint_provider.protocol.wording import suspension

FINISHED, GIVEN_UP = "the run finished", "the run failed for good"
TABLE_KEPT = timedelta(days=30)  # of a run that finished
FAILED_KEPT = KeepWithin(days=7)  # where the policy says nothing of age
QUIET = timedelta(days=1)  # no policy makes it shorter: a retry or a person may still come, a queued driver still start


# -- how long it is needed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Newest:
    """The time at which anything last happened, in place of a checkpoint for a policy."""

    completed_at: str
    id: int = 0


def over_for_good(state: State, policy: Retention, now: datetime) -> bool:
    """Return whether no run continues it. Then only checkpoints that the policy keeps after the end are still held."""
    return ended_for_good(state) or _given_up(state, policy, now)


def ended_for_good(state: State) -> bool:
    """Return whether a run-scoped history ended with a finished run.

    The run can then only be cleared, and a clear starts again from its first restore point. A restore since then
    means that a start is still to come.
    """
    if not state.of_one_run or not state.runs or state.runs[-1].outcome != "finished":
        return False
    launch = state.launch(state.runs[-1].launch)
    return launch is None or launch.branch == state.branch.number


def just_finished(state: State, now: datetime) -> bool:
    """Return whether a run finished less than a day ago.

    Code after its ``with`` block may still read its state or fail, and its task still deletes that state. Nobody else
    deletes it.
    """
    return ended_for_good(state) and not quiet(state, now)


def _given_up(state: State, policy: Retention, now: datetime) -> bool:
    """Return whether nothing has happened for longer than its state is kept.

    If runs share the history by a key, only its author knows when no other run will come: then ``policy`` alone tells.
    """
    kept = policy.after_end() or (FAILED_KEPT if state.of_one_run else None)
    if kept is None or not state.scope or state.suspended or any(state.living()) or not quiet(state, now):
        return False
    return not kept.keeps([_Newest(last_moved(state))], now)


def why(state: State) -> str:
    """Return the reason for which a history is closed."""
    return FINISHED if ended_for_good(state) else GIVEN_UP


def outlived(state: State, policy: Retention, now: datetime) -> bool:
    """Return whether a history may be closed: it is over, and its table has been kept for long enough."""
    if ended_for_good(state):
        return now - datetime.fromisoformat(last_moved(state)) > TABLE_KEPT
    return _given_up(state, policy, now)


def quiet(state: State, now: datetime) -> bool:
    """Return whether nothing has happened to its runs for a day."""
    return bool(state.launches) and now - datetime.fromisoformat(last_moved(state)) > QUIET


def last_moved(state: State) -> str:
    """Return when something last happened to its runs (ISO, UTC). Deletions do not count."""
    return max(filter(None, _moments(state)), default="")


def _moments(state: State) -> Iterator[str]:
    yield state.branch.at
    yield from (launch.at for launch in state.launches)
    for attempt in state.attempts:
        yield from (attempt.at, attempt.ended_at)
    for checkpoint in state.checkpoints:
        yield from (checkpoint.triggered_at, checkpoint.ended_at)


# -- closing -----------------------------------------------------------------------------------------------------------


def close(state: State, command: c.CloseHistory) -> Decision:
    """Decide whether a history begins to close. Refuse if it is still needed."""
    if state.closing:
        return DoneAlready(state.n)
    if needed := _needed(state, datetime.fromisoformat(command.now)):
        return Refusal(
            errors.StillNeeded(f"{state.job or 'this history'} is not closed: {needed}; nothing was changed")
        )
    return (e.HistoryClosing(reason=command.reason),)


def _needed(state: State, now: datetime) -> str | None:
    """Return the reason for which it is still needed, or None."""
    if not state.incarnation:
        return "there is no history"
    if living := next(state.living(), None):
        return f"attempt {living.epoch} is not over"
    if state.suspended:
        return f"it is suspended {suspension(state)}"
    started = {attempt.launch for attempt in state.attempts}
    waiting = [number for number in state.current_launches.values() if number is not None and number not in started]
    if waiting and not quiet(state, now):
        return f"launch {waiting[0]} waits for its driver"
    if state.claims:
        return f"it owns {state.claims[0].pointer}"
    waited = open_checkpoints(state)
    return f"chk-{waited[0].id} is {waited[0].status}" if waited else None


def open_checkpoints(state: State) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that must be over or deleted before the history is closed.

    A published savepoint is self-contained. Before that, its seal exists only here.
    """
    published = {checkpoint.id for checkpoint in state.savepoints if checkpoint.published}
    return tuple(
        checkpoint for checkpoint in state.checkpoints if not checkpoint.over and checkpoint.id not in published
    )


def finish(state: State, command: c.FinishClosing) -> Decision:
    """Decide the entry that closes the history. A history that is closed, or was opened again, needs none."""
    if not state.closing or state.closed:
        return DoneAlready(state.n)
    return (e.HistoryClosed(reason=state.closing.reason),)


def finish_closing_first(state: State, command: c.Command) -> tuple[e.Event, ...] | None:
    """Return the event that finishes closing before a launch opens the history again, or None."""
    if not state.closing or state.closed or not isinstance(command, c.PlanLaunch | c.StartAlone):
        return None
    return (e.HistoryClosed(reason=state.closing.reason),)


def closed(state: State, closing: Closing, command: c.Command, decision: Decision) -> Decision:
    """Return the answer to a command for a history that is closing or closed.

    Only commands that open or close the history are accepted. Work that was done before stays done. A driver learns
    that its attempt is over, and the sender of a request that no driver runs.
    """
    if isinstance(command, c.PlanLaunch | c.StartAlone | c.CloseHistory | c.FinishClosing):
        return decision
    if isinstance(decision, DoneAlready):
        return decision
    if isinstance(decision, Refusal) and isinstance(decision.error, errors.Fenced | errors.NotRunning):
        return decision
    text = (
        f"{state.job}{f', run {state.scope}' if state.scope else ''}: this history was closed at {state.at} ({closing.reason});"
        " nothing was changed. A clear of its task, or its next run, opens it again"
    )
    return Refusal(errors.Fenced(text) if isinstance(command, c.StartAttempt) else errors.HistoryIsClosed(text))
