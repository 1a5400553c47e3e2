"""The state machine: ``decide(state, command)`` -> events, *done already*, or a refusal. Pure. Runs anywhere.

Before any refusal one question: is what is wanted already so, by an entry that says the same? Then the answer is *done
already*. So deciding again is harmless, which is what makes a lost answer harmless. Launches and attempts are in
``launching``; checkpoints, retention and the dispatch are here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from airflow_checkpoint_provider.checkpoint import commands as c
from airflow_checkpoint_provider.checkpoint import errors, launching
from airflow_checkpoint_provider.checkpoint import events as e
from airflow_checkpoint_provider.checkpoint.apply import token_text
from airflow_checkpoint_provider.checkpoint.commands import DoneAlready, Refusal
from airflow_checkpoint_provider.checkpoint.config import CheckpointConfig
from airflow_checkpoint_provider.checkpoint.retention import Retention
from airflow_checkpoint_provider.checkpoint.state import (
    ABORTED,
    CONDEMNED,
    FORGOTTEN,
    PENDING,
    RETAINED,
    Checkpoint,
    State,
)

Decision = tuple[e.Event, ...] | DoneAlready | Refusal


def decide(state: State, command: c.Command) -> Decision:
    """What ``command`` means for ``state``."""
    return HANDLERS[type(command)](state, command)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def trigger(state: State, command: c.Trigger) -> Decision:
    number = state.requests.get(command.request)
    known = state.checkpoint(number)
    again = known is not None and known.status == ABORTED and command.try_number > known.try_number
    if number is not None and not again:  # requests are remembered for longer than what became of them
        return DoneAlready(number)
    if fenced := launching.fenced(state, command.epoch):
        return fenced
    running = state.running(command.application)
    if running is None:
        return _not_running(state, command.run)
    if not command.gated and (ahead := ungated(state)):
        return Refusal(errors.Busy(f"{state.job}: chk-{ahead[0].id} is pending; ask again when it has its outcome"))
    timeout_s = config_of(state).timeout_s if command.timeout_s is None else command.timeout_s
    triggered = e.CheckpointTriggered(
        id=state.next_id, request=command.request, try_number=command.try_number, checkpoint_kind="checkpoint",
        epochs=(running.epoch,), branch=state.branch.number, plan=(command.application,), timeout_s=timeout_s,
        barrier=command.barrier, origin=command.origin, gated=command.gated,
    )  # fmt: skip
    return (triggered,)


def ungated(state: State) -> tuple[Checkpoint, ...]:
    """The pending ones that count for how many may be in flight: a gated one waits for somebody else, perhaps for long."""
    return tuple(one for one in state.pending if not one.gated)


def _not_running(state: State, run: str | None) -> Refusal:
    """A run that has finished starts no driver any more; otherwise one may come."""
    meant = state.run(run) if run is not None else state.runs[-1] if state.scope and state.runs else None
    if meant is not None and meant.how == "finished":
        return Refusal(
            errors.RunFinished(
                f"{state.job}, run {meant.key}: it finished at {meant.ended_at}, and nothing runs that could take a checkpoint",
                run=meant.key,
            )
        )
    return Refusal(
        errors.NotRunning(
            f"{state.job or 'this job'}: no driver is running that could take a checkpoint; start the job first"
        )
    )


def complete(state: State, command: c.Complete) -> Decision:
    found = state.checkpoint(command.id)
    if found and found.status in (RETAINED, CONDEMNED, FORGOTTEN) and found.digest == command.digest:
        return DoneAlready(command.id)
    if fenced := launching.fenced(state, command.epoch):
        return fenced
    if found is None or found.status != PENDING:
        return Refusal(
            errors.NotPending(
                f"chk-{command.id} is not pending: {outcome(found)}; nothing was changed", status=found and found.status
            )
        )
    if found.gated and not command.finalize:
        return Refusal(
            errors.NotPending(f"chk-{command.id} is gated: only its finalize task completes it", status=PENDING)
        )
    if missing := set(found.plan) - set(command.acknowledged):
        return Refusal(
            errors.NotPending(f"chk-{command.id} is not acknowledged by {sorted(missing)}; wait for it", status=PENDING)
        )
    completed = e.CheckpointCompleted(
        id=command.id,
        digest=command.digest,
        bytes=command.bytes,
        states=command.states,
        subsumed=subsumed_by(state, found),
    )
    return (completed,)


def subsumed_by(state: State, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Pending ones with lower ids whose plan lies within; gated ones and savepoints may complete later, as older points."""
    return tuple(
        one.id
        for one in state.pending
        if one.id < checkpoint.id
        and set(one.plan) <= set(checkpoint.plan)
        and not one.gated
        and one.kind == "checkpoint"
    )


def abort(state: State, command: c.Abort) -> Decision:
    found = state.checkpoint(command.id)
    if found and found.status == ABORTED:
        return DoneAlready(command.id)
    if fenced := launching.fenced(state, command.epoch):
        return fenced
    if found is None or found.status != PENDING:
        return Refusal(
            errors.NotPending(f"chk-{command.id} cannot be aborted: {outcome(found)}", status=found and found.status)
        )
    return (
        e.CheckpointAborted(
            id=command.id, reason=command.reason, phase=command.phase, missing=command.missing, words=command.words
        ),
    )


def outcome(checkpoint: Checkpoint | None) -> str:
    """One checkpoint's outcome in words."""
    if checkpoint is None:
        return "the journal does not list it"
    return f"aborted ({checkpoint.reason})" if checkpoint.status == ABORTED else checkpoint.status


# -- restore -----------------------------------------------------------------------------------------------------------


def restore(state: State, command: c.Restore) -> Decision:
    """One entry that leaves no current launch: whatever runs is over, whatever starts next starts from the base."""
    known = state.tokens.get(token_text(command.token))
    if known is not None:
        return DoneAlready(known)
    number = command.base.id if command.base else None
    if not state.incarnation or (number is not None and number not in {one.id for one in state.retained}):
        what = "there is no history" if not state.incarnation else f"{command.base} was deleted"
        return Refusal(errors.StateRequired(f"{what}; nothing was changed. `checkpoints list` shows what is there"))
    opened = e.BranchOpened(
        branch=state.branch.number + 1, application=command.application, base=command.base, token=command.token,
        by=command.by, reason=command.reason,
    )  # fmt: skip
    left = tuple(
        e.CheckpointAborted(id=one.id, reason="restore", phase="acknowledge", missing=one.plan, words=command.reason)
        for one in state.pending
    )
    resumed = (e.Resumed(by=command.by, why=command.reason),) if state.suspended else ()
    return (opened, *left, *resumed)


# -- retention ---------------------------------------------------------------------------------------------------------


def condemn(state: State, command: c.Condemn) -> Decision:
    found = [state.checkpoint(number) for number in command.ids]
    if not any(one and one.status in (PENDING, RETAINED) for one in found):
        return DoneAlready(max(command.ids, default=0))
    if fenced := launching.fenced(state, command.epoch):
        return fenced
    if kept := sorted(set(command.ids) & held(state, datetime.fromisoformat(command.now))):
        return Refusal(
            errors.Held(
                f"{', '.join(f'chk-{number}' for number in kept)} may still be needed; nothing was deleted", ids=kept
            )
        )
    ids = tuple(one.id for one in found if one and one.status == RETAINED)
    return (e.CheckpointsCondemned(ids=ids),)


def forget(state: State, command: c.Forget) -> Decision:
    found = [state.checkpoint(number) for number in command.ids]
    if all(one is None or one.over for one in found):
        return DoneAlready(max(command.ids, default=0))
    if fenced := launching.fenced(state, command.epoch):
        return fenced
    if alive := [one.id for one in found if one and one.status in (RETAINED, PENDING)]:
        return Refusal(
            errors.Held(
                f"{', '.join(f'chk-{number}' for number in alive)} was not condemned; nothing was forgotten", ids=alive
            )
        )
    return (e.CheckpointsForgotten(ids=tuple(one.id for one in found if one and one.status == CONDEMNED)),)


def held(state: State, now: datetime) -> frozenset[int]:
    """Checkpoints that must not be condemned: somebody may still need them."""
    kept = retained_by_policy(state, now) | {one.id for one in state.pending}
    if ended_for_good(state):
        return kept
    kept |= state.restoring()
    kept |= {run.started_from.id for run in state.runs[-1:] if run.started_from and run.started_from.id}
    points = [state.restore_point(application) for application in state.current or {"": None}]
    return kept | {point.id for point in points if point and point.id}


def retained_by_policy(state: State, now: datetime) -> frozenset[int]:
    policy: Retention | None = policy_of(state)
    if ended_for_good(state):
        policy = policy.after_end() if policy else None
    return policy.keeps(state.retained, now) if policy else frozenset()


def policy_of(state: State) -> Retention:
    return config_of(state).retention


def config_of(state: State) -> CheckpointConfig:
    """The newest attempt's, because that is what its author last wrote; the default before there is one."""
    in_force = state.attempts[-1].checkpointing if state.attempts else None
    return CheckpointConfig.from_json(in_force) if in_force else CheckpointConfig()


def ended_for_good(state: State) -> bool:
    """A run-scoped history whose run finished: it can only be cleared, and then starts from where it started."""
    return bool(state.scope and state.runs and state.runs[-1].how == "finished")


HANDLERS: dict[type[c.Command], Callable[[State, Any], Decision]] = {
    c.PlanLaunch: launching.plan_launch,
    c.StartAttempt: launching.start_attempt,
    c.StartAlone: launching.start_alone,
    c.RequestStop: launching.request_stop,
    c.EndAttempt: launching.end_attempt,
    c.Trigger: trigger,
    c.Complete: complete,
    c.Abort: abort,
    c.Restore: restore,
    c.Condemn: condemn,
    c.Forget: forget,
}
