"""Which checkpoints and claimed savepoints are deleted, and which may still be needed. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import Retainable, Retention
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches, lifetime
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.state import State


def condemn(state: State, command: c.Condemn) -> Decision:
    """Decide which checkpoints are marked for deletion. Refuse if one of them may still be needed."""
    checkpoints = _listed(state, command.ids)
    claims = tuple(
        claim.pointer for claim in state.claims if claim.pointer in command.claims and claim.status == RETAINED
    )
    if not claims and not any(checkpoint.status in (PENDING, RETAINED) for checkpoint in checkpoints):
        return DoneAlready(max(command.ids, default=0))
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    now = datetime.fromisoformat(command.now)
    savepoints = set() if command.disposing else {checkpoint.id for checkpoint in state.savepoints}
    needed: list[int | str] = sorted(set(command.ids) & (held(state, now) | savepoints))
    needed += sorted(set(claims) & held_claims(state, now))
    if needed:
        names = ", ".join(_name(item) for item in needed)
        return Refusal(errors.Held(f"{names} may still be needed; nothing was deleted", ids=needed))
    ids = tuple(checkpoint.id for checkpoint in checkpoints if checkpoint.status == RETAINED)
    return (e.CheckpointsCondemned(ids=ids, claims=claims),)


def forget(state: State, command: c.Forget) -> Decision:
    """Decide which checkpoints are forgotten: their files are deleted. Refuse a checkpoint that was not condemned."""
    checkpoints = _listed(state, command.ids)
    claims = tuple(claim for claim in state.claims if claim.pointer in command.claims)
    if not claims and all(checkpoint.over for checkpoint in checkpoints):
        return DoneAlready(max(command.ids, default=0))
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    alive: list[int | str] = [checkpoint.id for checkpoint in checkpoints if checkpoint.status in (RETAINED, PENDING)]
    alive += [claim.pointer for claim in claims if claim.status == RETAINED]
    if alive:
        names = ", ".join(_name(item) for item in alive)
        return Refusal(errors.Held(f"{names} was not condemned; nothing was forgotten", ids=alive))
    ids = tuple(checkpoint.id for checkpoint in checkpoints if checkpoint.status == CONDEMNED)
    return (e.CheckpointsForgotten(ids=ids, claims=tuple(claim.pointer for claim in claims)),)


def _listed(state: State, ids: Iterable[int]) -> list[Checkpoint]:
    """Return those of ``ids`` that the journal lists, in their order."""
    by_id = {checkpoint.id: checkpoint for checkpoint in state.checkpoints}
    return [by_id[number] for number in ids if number in by_id]


def _name(item: int | str) -> str:
    """Return the name of a checkpoint or a claimed savepoint in messages."""
    return item if isinstance(item, str) else f"chk-{item}"


def held(state: State, now: datetime) -> frozenset[int]:
    """Return the checkpoints that may still be needed, so nobody condemns them. Only its owner disposes of a savepoint."""
    over = lifetime.over_for_good(state, policy_of(state), now)
    kept = retained_by_policy(state, now, over=over) | {checkpoint.id for checkpoint in state.pending}
    if over:
        return kept
    kept |= state.restoring() | _newest_finalized(state)
    kept |= {run.started_from.id for run in state.runs[-1:] if run.started_from and run.started_from.id}
    points = [state.restore_point(application) for application in state.current_launches]
    return kept | {point.id for point in points if point and point.id}


def _newest_finalized(state: State) -> frozenset[int]:
    """Return the gated checkpoint that was completed last: the steps after its gate may still read it."""
    finalized = [checkpoint for checkpoint in state.retained if checkpoint.request.gated]
    newest = max(finalized, key=lambda checkpoint: (checkpoint.ended_n, checkpoint.id), default=None)
    return frozenset({newest.id} if newest else ())


def retained_by_policy(state: State, now: datetime, *, over: bool) -> frozenset[int]:
    """Return the checkpoints that the policy keeps. No policy applies to savepoints."""
    policy = _in_force(state, over=over)
    checkpoints = [checkpoint for checkpoint in state.retained if not checkpoint.savepoint]
    return policy.keeps(checkpoints, now) if policy else frozenset()


def _in_force(state: State, *, over: bool) -> Retention | None:
    """Return the policy; if the history is over, the part of it that still applies."""
    policy = policy_of(state)
    return policy.after_end() if over else policy


@dataclass(frozen=True)
class _Claimed:
    """A claimed savepoint as a policy sees it: older than every checkpoint of its history."""

    completed_at: str
    id: int


def held_claims(state: State, now: datetime) -> frozenset[str]:
    """Return the claimed savepoints that must not be deleted: restore points, and those that the policy counts as newest."""
    if not state.claims:
        return frozenset()
    checkpoints = [
        checkpoint
        for checkpoint in state.retained
        if not checkpoint.savepoint and checkpoint.branch == state.branch.number
    ]
    over = lifetime.over_for_good(state, policy_of(state), now)
    base = state.branch.base.pointer if state.branch.base and not checkpoints and not over else None
    policy = _in_force(state, over=over)
    claimed = [claim for claim in reversed(state.claims) if claim.status == RETAINED]
    candidates: list[Retainable] = [*checkpoints, *(_Claimed(claim.at, -age) for age, claim in enumerate(claimed))]
    ids = policy.keeps(candidates, now) if policy else ()
    kept = {claim.pointer for age, claim in enumerate(claimed) if -age in ids}
    started = {run.started_from.pointer for run in state.runs[-1:] if run.started_from and not over}
    return frozenset(claim.pointer for claim in state.claims if claim.pointer in kept | started | {base})


def policy_of(state: State) -> Retention:
    return state.config.retention
