"""The state machine: ``decide(state, command)`` -> events, *done already*, or a refusal. Pure. Runs anywhere.

Before any refusal one question: is what is wanted already so, by an entry that says the same? Then the answer is *done
already*. So deciding again is harmless, which is what makes a lost answer harmless. Launches and attempts are in
``launching``, requests and their queue in ``requests``; checkpoints, retention and the dispatch are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import Retention, Taken
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches, lifetime, requests
from airflow_checkpoint_provider.protocol.commands import DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.config import config_of
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import (
    ABORTED,
    CONDEMNED,
    FORGOTTEN,
    PENDING,
    RETAINED,
    Checkpoint,
    State,
)
from airflow_checkpoint_provider.protocol.transitions import apply, token_text

Decision = tuple[e.Event, ...] | DoneAlready | Refusal


def decide(state: State, command: c.Command) -> Decision:
    """What ``command`` means for ``state``; what that makes possible for queued requests stands in the same entry."""
    if state.closing is not None and (finish := lifetime.finished_first(state, command)):
        return finish
    decision: Decision = HANDLERS[type(command)](state, command)
    if state.closing is not None:
        return lifetime.closed(state, command, decision)
    if not isinstance(decision, tuple):
        return decision
    for event in decision:
        state = apply(state, event)
    return (*decision, *requests.asked_again(state))


# -- checkpoints -------------------------------------------------------------------------------------------------------


def complete(state: State, command: c.Complete) -> Decision:
    found = state.checkpoint(command.id)
    if found and found.status in (RETAINED, CONDEMNED, FORGOTTEN) and found.digest == command.digest:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if found is None or found.status != PENDING:
        return Refusal(
            errors.NotPending(
                f"chk-{command.id} is not pending: {outcome(found)}; nothing was changed", status=found and found.status
            )
        )
    if found.request.gated and not command.finalize:
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
        suspended=_suspended_by(found),
    )
    return (completed,)


def _suspended_by(checkpoint: Checkpoint) -> str:
    """A stop-savepoint completes and suspends in one entry: there is no instant at which old code could start again."""
    if not kind_named(checkpoint.kind).suspends:
        return ""
    return f"{checkpoint.request.owner or checkpoint.request.origin}, {checkpoint.target}"


def subsumed_by(state: State, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Pending ones with lower ids whose plan lies within; gated ones and savepoints may complete later, as older points."""
    if not kind_named(checkpoint.kind).subsumes:
        return ()
    return tuple(
        one.id for one in requests.ungated(state) if one.id < checkpoint.id and set(one.plan) <= set(checkpoint.plan)
    )


def confirm_commits(state: State, command: c.ConfirmCommits) -> Decision:
    """Record that every participant was told. Only the attempt itself knows that; nobody is told of what is not completed."""
    found = state.checkpoint(command.id)
    if found and found.commits_confirmed:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if found is None or found.status not in (RETAINED, CONDEMNED, FORGOTTEN):
        return Refusal(
            errors.NotPending(
                f"chk-{command.id} is not completed: {outcome(found)}; no commit was confirmed",
                status=found and found.status,
            )
        )
    return (e.CommitsConfirmed(id=command.id),)


def confirm_published(state: State, command: c.ConfirmPublished) -> Decision:
    """A savepoint's ``_metadata`` stands at its target. Nobody puts it there before the checkpoint is completed."""
    found = state.checkpoint(command.id)
    if found and (found.published or found.status in (CONDEMNED, FORGOTTEN)):
        return DoneAlready(command.id)
    if found is None or not found.savepoint or found.status != RETAINED:
        return Refusal(
            errors.NotPending(
                f"chk-{command.id} is no completed savepoint: {outcome(found)}; nothing was published",
                status=found and found.status,
            )
        )
    return (e.SavepointPublished(id=command.id),)


def abort(state: State, command: c.Abort) -> Decision:
    found = state.checkpoint(command.id)
    if found and found.status == ABORTED:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
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
    if gone := launches.being_deleted(state, command.base):
        return gone
    opened = e.BranchOpened(
        branch=state.branch.number + 1, application=command.application, base=command.base, token=command.token,
        by=command.by, reason=command.reason, above=command.above, claimed=command.claimed,
        rename=command.rename,
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
    claims = tuple(one.pointer for one in state.claims if one.pointer in command.claims and one.status == RETAINED)
    if not claims and not any(one and one.status in (PENDING, RETAINED) for one in found):
        return DoneAlready(max(command.ids, default=0))
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    now = datetime.fromisoformat(command.now)
    savepoints = set() if command.disposing else {one.id for one in state.savepoints}
    kept: list[int | str] = sorted(set(command.ids) & (held(state, now) | savepoints))
    kept += sorted(set(claims) & claims_held(state, now))
    if kept:
        names = ", ".join(one if isinstance(one, str) else f"chk-{one}" for one in kept)
        return Refusal(errors.Held(f"{names} may still be needed; nothing was deleted", ids=kept))
    ids = tuple(one.id for one in found if one and one.status == RETAINED)
    return (e.CheckpointsCondemned(ids=ids, claims=claims),)


def forget(state: State, command: c.Forget) -> Decision:
    found = [state.checkpoint(number) for number in command.ids]
    claims = tuple(one for one in state.claims if one.pointer in command.claims)
    if not claims and all(one is None or one.over for one in found):
        return DoneAlready(max(command.ids, default=0))
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    alive: list[int | str] = [one.id for one in found if one and one.status in (RETAINED, PENDING)]
    alive += [one.pointer for one in claims if one.status == RETAINED]
    if alive:
        names = ", ".join(one if isinstance(one, str) else f"chk-{one}" for one in alive)
        return Refusal(errors.Held(f"{names} was not condemned; nothing was forgotten", ids=alive))
    ids = tuple(one.id for one in found if one and one.status == CONDEMNED)
    return (e.CheckpointsForgotten(ids=ids, claims=tuple(one.pointer for one in claims)),)


def held(state: State, now: datetime) -> frozenset[int]:
    """What must not be condemned, whoever asks: somebody may still need it. Of savepoints only their owner disposes."""
    kept = retained_by_policy(state, now) | {one.id for one in state.pending}
    if lifetime.over_for_good(state, policy_of(state), now):
        return kept
    kept |= state.restoring()
    kept |= {run.started_from.id for run in state.runs[-1:] if run.started_from and run.started_from.id}
    points = [state.restore_point(application) for application in state.current or {"": None}]
    return kept | {point.id for point in points if point and point.id}


def retained_by_policy(state: State, now: datetime) -> frozenset[int]:
    """Of checkpoints; no policy speaks of savepoints."""
    policy = _in_force(state, now)
    return policy.keeps([one for one in state.retained if not one.savepoint], now) if policy else frozenset()


def _in_force(state: State, now: datetime) -> Retention | None:
    """The policy, or what of it goes on holding when the history is over."""
    policy = policy_of(state)
    return policy.after_end() if lifetime.over_for_good(state, policy, now) else policy


@dataclass(frozen=True)
class _Claimed:
    """A claimed savepoint as a policy sees it: older than every checkpoint of its history."""

    completed_at: str
    id: int


def claims_held(state: State, now: datetime) -> frozenset[str]:
    """Claimed savepoints that must not be deleted: where an attempt starts, or what counts among the newest kept."""
    own = [one for one in state.retained if not one.savepoint and one.branch == state.branch.number]
    over = lifetime.over_for_good(state, policy_of(state), now)
    base = state.branch.base.pointer if state.branch.base and not own and not over else None
    policy = _in_force(state, now)
    claimed = [one for one in reversed(state.claims) if one.status == RETAINED]
    seen: list[Taken] = [*own, *(_Claimed(one.at, -age) for age, one in enumerate(claimed))]
    ids = policy.keeps(seen, now) if policy else ()
    kept = {one.pointer for age, one in enumerate(claimed) if -age in ids}
    started = {run.started_from.pointer for run in state.runs[-1:] if run.started_from and not over}
    return frozenset(one.pointer for one in state.claims if one.pointer in kept | started | {base})


def policy_of(state: State) -> Retention:
    return config_of(state).retention


HANDLERS: dict[type[c.Command], Callable[[State, Any], Decision]] = {
    c.PlanLaunch: launches.plan_launch,
    c.StartAttempt: launches.start_attempt,
    c.StartAlone: launches.start_alone,
    c.RequestStop: launches.request_stop,
    c.EndAttempt: launches.end_attempt,
    c.Trigger: requests.trigger,
    c.Complete: complete,
    c.Abort: abort,
    c.ConfirmCommits: confirm_commits,
    c.ConfirmPublished: confirm_published,
    c.Restore: restore,
    c.Condemn: condemn,
    c.Forget: forget,
    c.CloseHistory: lifetime.close,
    c.FinishClosing: lifetime.finish,
}
