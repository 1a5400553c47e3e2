"""Which checkpoints and claimed savepoints are deleted, and which somebody may still need. Pure. Runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import Retention, Taken
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches, lifetime
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.config import config_of
from airflow_checkpoint_provider.protocol.state import CONDEMNED, PENDING, RETAINED, State


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
