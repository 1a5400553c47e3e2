"""How long a history is needed, and who may still say something in one that is closing or closed. Pure. Runs anywhere.

A history of one run is over for good when its run finished, or was given up: all its attempts are over, and nothing has
happened for longer than what is kept of a failed run. One that all runs share never is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import KeepWithin, Retention
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.state import Checkpoint, State

FINISHED, GIVEN_UP = "the run finished", "the run failed for good"
TABLE_KEPT = timedelta(days=30)  # of a run that finished
FAILED_KEPT = KeepWithin(days=7)  # where the policy says nothing of age
QUIET = timedelta(days=1)  # no policy makes it shorter: a retry or a person may still come, a queued driver still start


# -- what of it is still needed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Newest:
    """What a policy looks at, in place of a checkpoint: when anything last happened."""

    completed_at: str
    id: int = 0


def over_for_good(state: State, policy: Retention, now: datetime) -> bool:
    """Whether nobody goes on with it: only what the policy keeps after the end is still held."""
    return ended_for_good(state) or _given_up(state, policy, now)


def ended_for_good(state: State) -> bool:
    """A run-scoped history whose newest run finished: it can only be cleared, and then starts from where it started. Where
    somebody went back since, a start is still to come."""
    if not state.scope or not state.runs or state.runs[-1].how != "finished":
        return False
    launch = state.launch(state.runs[-1].launch)
    return launch is None or launch.branch == state.branch.number


def just_finished(state: State, now: datetime) -> bool:
    """Whether a run finished less than a day ago: code behind its ``with`` may still read what it left, or fail, and its task comes
    to delete that. Nobody else does."""
    return ended_for_good(state) and not quiet(state, now)


def _given_up(state: State, policy: Retention, now: datetime) -> bool:
    if not state.scope or state.suspended or any(state.living()) or not quiet(state, now):
        return False
    return not (policy.after_end() or FAILED_KEPT).keeps([_Newest(last_moved(state))], now)


def why(state: State) -> str:
    """Why it is closed."""
    return FINISHED if ended_for_good(state) else GIVEN_UP


def outlived(state: State, policy: Retention, now: datetime) -> bool:
    """Whether it may be closed: its table has been kept for long enough, too."""
    if ended_for_good(state):
        return now - datetime.fromisoformat(last_moved(state)) > TABLE_KEPT
    return _given_up(state, policy, now)


def quiet(state: State, now: datetime) -> bool:
    """Whether nothing has happened to its runs for a day."""
    return bool(state.launches) and now - datetime.fromisoformat(last_moved(state)) > QUIET


def last_moved(state: State) -> str:
    """When something last happened to its runs; what was deleted since does not count."""
    return max(filter(None, _moments(state)), default="")


def _moments(state: State) -> Iterator[str | None]:
    yield state.branch.at
    yield from (one.at for one in state.launches)
    for attempt in state.attempts:
        yield from (attempt.at, attempt.ended_at)
    for checkpoint in state.checkpoints:
        yield from (checkpoint.triggered_at, checkpoint.ended_at)


# -- closing -----------------------------------------------------------------------------------------------------------


def close(state: State, command: c.CloseHistory) -> Decision:
    if state.closing is not None:
        return DoneAlready(state.n)
    if needed := _needed(state, datetime.fromisoformat(command.now)):
        return Refusal(
            errors.StillNeeded(f"{state.job or 'this history'} is not closed: {needed}; nothing was changed")
        )
    return (e.HistoryClosing(why=command.why),)


def _needed(state: State, now: datetime) -> str | None:
    """Why it is not closed."""
    if not state.incarnation:
        return "there is no history"
    if living := next(state.living(), None):
        return f"attempt {living.epoch} is not over"
    if state.suspended:
        return f"it is suspended since {state.suspended}"
    started = {one.launch for one in state.attempts}
    waiting = [number for number in state.current.values() if number is not None and number not in started]
    if waiting and not quiet(state, now):
        return f"launch {waiting[0]} waits for its driver"
    if state.claims:
        return f"it owns {state.claims[0].pointer}"
    left = in_the_way(state)
    return f"chk-{left[0].id} is {left[0].status}" if left else None


def in_the_way(state: State) -> tuple[Checkpoint, ...]:
    """What must be settled or deleted before the history is closed. A savepoint that was published stands alone; before that
    its seal is here and nowhere else."""
    alone = {one.id for one in state.savepoints if one.published}
    return tuple(one for one in state.checkpoints if not one.over and one.id not in alone)


def finish(state: State, command: c.FinishClosing) -> Decision:
    """The entry at the next boundary. One that was closed, and perhaps opened again since, needs none."""
    if state.closing is None or state.closed:
        return DoneAlready(state.n)
    return (e.HistoryClosed(why=state.closing),)


def finished_first(state: State, command: c.Command) -> tuple[e.Event, ...] | None:
    """Who opens it again finishes the closing first."""
    if state.closing is None or state.closed or not isinstance(command, c.PlanLaunch | c.StartAlone):
        return None
    return (e.HistoryClosed(why=state.closing),)


def closed(state: State, command: c.Command, decision: Decision) -> Decision:
    """What a command comes to in a history that is closing or closed. Nothing is accepted but what opens or closes it; what was
    done before is done, a driver is told that it is over, and who asks for a checkpoint, that nothing runs."""
    if isinstance(command, c.PlanLaunch | c.StartAlone | c.CloseHistory | c.FinishClosing):
        return decision
    if isinstance(decision, DoneAlready):
        return decision
    if isinstance(decision, Refusal) and isinstance(decision.error, errors.Fenced | errors.NotRunning):
        return decision
    said = (
        f"{state.job}{f', run {state.scope}' if state.scope else ''}: this history was closed at {state.at} ({state.closing});"
        " nothing was changed. A clear of its task, or its next run, opens it again"
    )
    return Refusal(errors.Fenced(said) if isinstance(command, c.StartAttempt) else errors.HistoryClosed(said))
