"""Mistakes that drafts of the protocol or of this package once made, each as a small patch of the real code. Runs anywhere.

A number names a mistake of the protocol's drafts, as B1, B2, ... do in the unit tests; a letter one of this package's first
version, which the models found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from unittest.mock import patch

from airflow_checkpoint_provider.coordinator import closing, coordinator, garbage, journal
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import Busy, Refused, StoreUnavailable
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import (
    completion,
    deletion,
    launches,
    lifetime,
    requests,
    restores,
    transitions,
    updates,
)
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, PENDING, Checkpoint
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.decisions import HANDLERS
from airflow_checkpoint_provider.protocol.launch_records import Run
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, digest
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt import file_sets
from airflow_checkpoint_provider.storage.base import Put, Store, put
from tests.model import actors
from tests.model.explore import Process

Patch = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Bug:
    title: str
    patch: Patch
    scenario: str
    breaks: tuple[str, ...]
    walks: int = 0  # so many, where only what stays in the end shows it


def replaced(owner: Any, name: str, new: Any) -> Patch:
    return lambda: patch.object(owner, name, new)


def decided(command: type[c.Command], handler: Callable[[State, Any], Decision]) -> Patch:
    return lambda: patch.dict(HANDLERS, {command: handler})


# -- journal -----------------------------------------------------------------------------------------------------------


def boundary_read_first(self: Journal) -> State:
    reading = self.state if self.state.n >= 0 else self._tail()
    while (beyond := self._beyond(reading)) is not None:
        reading = beyond
    self.state, self._believed = self._read_on(reading), True
    return self.state


def absent_is_believed(self: Journal) -> State:
    reading = self._read_on(self.state if self.state.n >= 0 else self._tail())
    while (reading.n + 1) % self.segment == 0 and (beyond := self._beyond(reading)) is not None:
        reading = self._read_on(beyond)
    self.state, self._believed = reading, True
    return reading


def read_into_the_state(self: Journal) -> State:
    self.state = self._tail() if self.state.n < 0 else self.state
    while True:
        self.state = self._read_on(self.state)
        beyond = self._beyond(self.state)
        if beyond is None:
            self._believed = True
            return self.state
        self.state = beyond


def prune_what_is_open(process: Process, state: State) -> None:
    first = state.n // process.segment * process.segment
    process.delete(actors.KEYS.entry(number) for number in range(first + 1, state.n + 1))


def absent_is_not_done(store: Store, key: str, body: bytes, *, patience: float) -> tuple[Put, bytes | None]:
    outcome, found = put(store, key, body, patience=patience)
    if outcome is Put.UNKNOWN:
        raise StoreUnavailable("it is not there, so it was not done")
    return outcome, found


def exists_is_anothers(store: Store, key: str, body: bytes, *, patience: float) -> tuple[Put, bytes | None]:
    if store.create(key, body) is Put.EXISTS:
        raise Refused("somebody else was first")
    return put(store, key, body, patience=patience)


def known_is_refused(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    known = KNOWN(state, run, command)
    return Refusal(Busy("it is planned already")) if isinstance(known, DoneAlready) else known


def silence_is_nothing(self: Journal, command: Any) -> journal.Answer:
    while (answer := self._append_once(command, True)) is None:
        pass
    return answer


@contextmanager
def closed_at_once() -> Iterator[None]:
    """Whoever may close puts *closed* at the next boundary, and who has read nothing of it goes on before that."""

    def finish(state: State, command: c.FinishClosing) -> Decision:
        decision = lifetime.close(state, c.CloseHistory(reason="", now=actors.now()))
        return (e.HistoryClosed(reason=""),) if isinstance(decision, tuple) else decision

    skipped = {c.CloseHistory: lambda state, command: DoneAlready(state.n), c.FinishClosing: finish}
    with patch.dict(HANDLERS, skipped):
        yield


KNOWN = launches._known

JOURNAL = {
    "1": Bug("no boundary check after a win", replaced(Journal, "_void", lambda self, n: False), "writers", ("P7",)),
    "2": Bug("boundary read before n+1", replaced(Journal, "catch_up", boundary_read_first), "phantoms", ("P7",)),
    "3": Bug("no boundary check after 'absent'", replaced(Journal, "catch_up", absent_is_believed), "phantoms", ("P7",)),
    "4": Bug("pruning before the next boundary is seen", replaced(actors, "prune", prune_what_is_open), "writers", ("P7", "P2")),
    "5": Bug("unknown + read-back absent = not done", replaced(journal, "put", absent_is_not_done), "writers", ("P7",)),
    "6": Bug("'exists' = somebody else's, and the caller is told", replaced(journal, "put", exists_is_anothers), "writers", ("P7",)),
    "7": Bug("re-decided command without its token", replaced(launches, "_known", lambda *arguments: None), "writers", ("P11",)),
    "29": Bug("close that skips history_closing", closed_at_once, "closers", ("P7",)),
    "50": Bug(
        "old boundaries deleted instead of stubbed",
        replaced(actors, "shorten", lambda process, number, state: process.delete([actors.KEYS.entry(number)])),
        "a_long_sleep", ("P7",),
    ),
    "51": Bug("only the last token is remembered", replaced(updates, "KEPT_TOKENS", 1), "writers", ("P11",)),
    "52": Bug("a repeated command is answered 'refused'", replaced(launches, "_known", known_is_refused), "writers", ("P7",)),
    "a": Bug("what was read half-way stays in the state", replaced(Journal, "catch_up", read_into_the_state), "phantoms_and_silence", ("P7",)),
    "b": Bug("silence after a void win = nothing was put", replaced(Journal, "append", silence_is_nothing), "writers", ("P7",)),
}  # fmt: skip


# -- checkpoints -------------------------------------------------------------------------------------------------------


def overwritten(self: Coordinator, ack: Acknowledgement) -> Acknowledgement:
    self.store.overwrite(self.keys.acknowledgement(ack.id, ack.application), ack.to_bytes())
    self._own[ack.id, ack.application] = ack
    return ack


def own_seal(self: Coordinator, number: int, body: bytes) -> bytes:
    PUT_SEAL(self, number, body)
    return body


def whatever_there_is(self: Coordinator, checkpoint: Checkpoint) -> dict[str, Acknowledgement]:
    nothing = Acknowledgement(
        inc=self.state.incarnation, id=checkpoint.id, application="", epoch=1, nonce="", run="", states=()
    )
    return {"": nothing} | ACKNOWLEDGEMENTS(self, checkpoint)


def sealed_too_early(self: Coordinator, number: int, *, finalize: bool = False) -> journal.Answer:
    """The first version: seals whatever acknowledgements there are; only the entry asks whether those are all."""
    checkpoint = self._listed(number)
    acks = self._acknowledgements(checkpoint)
    body = self._put_seal(number, self._seal(checkpoint, acks).to_bytes())
    states = coordinator.state_entries(Seal.from_bytes(body))
    command = c.Complete(
        id=number,
        digest=digest(body),
        metadata_bytes=9,
        bytes=0,
        states=states,
        acknowledged=tuple(acks),
        epoch=self.epoch,
    )
    return self.journal.append(command)


def counted_from_retained(state: State, command: c.Trigger) -> Decision:
    decision = requests.trigger(state, command)
    newest = max((checkpoint.id for checkpoint in state.retained), default=0)
    return (replace(decision[0], id=newest + 1),) if isinstance(decision, tuple) else decision  # type: ignore[call-arg]


def driver_finalizes(self: Coordinator, number: int, *, finalize: bool = False) -> journal.Answer:
    """A driver completes whatever it has acknowledged."""
    for checkpoint in self.state.pending:
        if checkpoint.request.gated and self.epoch is not None and not self.missing(checkpoint):
            COMPLETE(self, checkpoint.id, finalize=True)
    return COMPLETE(self, number, finalize=finalize)


def everything_older(state: State, checkpoint: Checkpoint) -> tuple[int, ...]:
    return tuple(known.id for known in state.pending if known.id < checkpoint.id)


PUT_SEAL, ACKNOWLEDGEMENTS, COMPLETE = Coordinator._put_seal, Coordinator._acknowledgements, Coordinator.complete

CHECKPOINTS = {
    "8": Bug("acknowledgement overwritten", replaced(Coordinator, "acknowledge", overwritten), "two_asynchronous_parts", ("P4",)),
    "9": Bug("digest of one's own seal", replaced(Coordinator, "_put_seal", own_seal), "a_later_version", ("P4",)),
    "10": Bug("complete without all acknowledgements", replaced(Coordinator, "_acknowledgements", whatever_there_is), "another_coordinator", ("P4",)),
    "13": Bug("ids counted from what is retained", decided(c.Trigger, counted_from_retained), "a_zombie", ("P2",)),
    "30": Bug("a gated one finalized by the driver", replaced(Coordinator, "complete", driver_finalizes), "an_audit", ("P1",)),
    "33": Bug("states not yet reached are left out", replaced(actors, "handed_on", lambda before, new: (new,)), "a_state_reached_late", ("P4",)),
    "44": Bug("older pending ones not subsumed", replaced(completion, "subsumed_by", lambda state, checkpoint: ()), "two_at_once", ("P5",)),
    "h": Bug("a gated one subsumed", replaced(completion, "subsumed_by", everything_older), "an_audit", ("P1",)),
    "c": Bug("sealed before all acknowledgements were there", replaced(Coordinator, "complete", sealed_too_early), "another_coordinator", ("P4",)),
}  # fmt: skip


# -- attempts ----------------------------------------------------------------------------------------------------------


def same_epoch(state: State, command: c.StartAttempt) -> Decision:
    decision = launches.start_attempt(state, command)
    before = state.attempt_of(state.current_launches.get(""))
    if not isinstance(decision, tuple) or before is None or before.outcome is not None:
        return decision
    return tuple(
        replace(event, epoch=before.epoch) if isinstance(event, e.AttemptStarted) else event for event in decision
    )


def point_of_the_launch(state: State, command: c.StartAttempt) -> Decision:
    decision = launches.start_attempt(state, command)
    launch = state.current_launch()
    if not isinstance(decision, tuple) or launch is None:
        return decision
    return tuple(
        replace(event, restore_point=launch.restore_point) if isinstance(event, e.AttemptStarted) else event
        for event in decision
    )


def queued_is_dead(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    return ALIVE(state, run, command) if state.attempt_of(state.current_launches.get("")) else None


def stopping_is_adopted(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    return ALIVE(replace(state, launches=tuple(replace(launch, stop=None) for launch in state.launches)), run, command)


def nobody_lives(state: State, command: c.StartAttempt) -> Decision:
    return launches.start_attempt(state, replace(command, seen_alive=False))


def only_fenced(self: State, epoch: int) -> bool:
    found = self.attempt(epoch)
    return found is None or OVER(
        replace(self, attempts=tuple(replace(attempt, ending=None) for attempt in self.attempts)), epoch
    )


def adopted_for_an_older_generation(state: State, event: e.LaunchAdopted) -> State:
    return replace(ADOPTED(state, event), runs=state.runs)


def restored_again(state: State, command: c.Restore) -> Decision:
    return restores.restore(replace(state, tokens={}), command)


def launch_stays_current(state: State, event: e.BranchOpened) -> State:
    return replace(BRANCHED(state, event), current_launches=state.current_launches)


def nothing_is_missing(*arguments: Any) -> None:
    return None


def attached_all_the_same(state: State, command: c.EndLaunch) -> Decision:
    return (e.LaunchEnded(launch=command.launch, outcome=command.outcome, exit_code=command.exit_code),)


ALIVE, OVER, ADOPTED = launches._alive, State.over, transitions.TRANSITIONS[e.LaunchAdopted]
BRANCHED = transitions.TRANSITIONS[e.BranchOpened]

ATTEMPTS = {
    "11": Bug("launch that leaves pending ones", replaced(launches, "abort_replaced", lambda *arguments: ()), "another_coordinator", ("P3",)),
    "12": Bug("second driver keeps the epoch", decided(c.StartAttempt, same_epoch), "a_driver_starts_again", ("P2",)),
    "14": Bug("restore point older than the entry", decided(c.StartAttempt, point_of_the_launch), "a_driver_starts_again", ("P9",)),
    "26": Bug("an earlier try replaces a later one", replaced(launches, "_earlier_try", lambda *arguments: None), "tries_of_one_run", ("P10",)),
    "34": Bug("Restore without token", decided(c.Restore, restored_again), "a_restore_that_is_repeated", ("P11",)),
    "35": Bug(
        "Restore that leaves the launch current",
        lambda: patch.dict(transitions.TRANSITIONS, {e.BranchOpened: launch_stays_current}), "a_restore", ("P3", "P7", "P9"),
    ),
    "36": Bug("retry taken for a clear", replaced(launches, "is_clear", lambda run, command: run is not None), "a_finished_run", ("P11",)),
    "37": Bug("a queued launch counts as dead", replaced(launches, "_alive", queued_is_dead), "two_runs", ("P10",)),
    "38": Bug("drivers of one launch fence each other", decided(c.StartAttempt, nobody_lives), "drivers_of_one_launch", ("P10",)),
    "41": Bug("a stopping launch adopted", replaced(launches, "_alive", stopping_is_adopted), "tries_of_one_run", ("P10",)),
    "42": Bug("ended but not fenced driver goes on", replaced(State, "over", only_fenced), "a_driver_that_was_ended", ("P3",)),
    "43": Bug("a driver's command without epoch", replaced(launches, "fenced", lambda *arguments: None), "a_zombie", ("P3",)),
    "d": Bug(
        "a retry of the clear that adopted counts as another clear",
        lambda: patch.dict(transitions.TRANSITIONS, {e.LaunchAdopted: adopted_for_an_older_generation}), "a_cleared_run", ("P11",),
    ),
    "e": Bug("a clear to a deleted start", replaced(launches, "_missing_state", nothing_is_missing), "retiring_under_an_older_clear", ("P5",)),
    "f": Bug("a start that was deleted since", replaced(launches, "_missing_state", nothing_is_missing), "retiring_under_a_restore", ("P5",)),
    "x": Bug("the end of a launch whose driver attached", decided(c.EndLaunch, attached_all_the_same), "a_launch_that_ended", ("P3",)),
}  # fmt: skip


# -- deleting ----------------------------------------------------------------------------------------------------------


@contextmanager
def nothing_restoring_is_held() -> Iterator[None]:
    """Three rules hold the point of a restore here: *restoring*, *restore point*, *where the newest run started*."""

    def only_policy(state: State, now: Any) -> frozenset[int]:
        over = lifetime.over_for_good(state, deletion.policy_of(state), now)
        return deletion.retained_by_policy(state, now, over=over) | {checkpoint.id for checkpoint in state.pending}

    with ExitStack() as stack:
        for module in (deletion, garbage):
            stack.enter_context(patch.object(module, "held", only_policy))
        yield


def expired(coordinator: Coordinator, now: str) -> tuple[int, ...]:
    held = deletion.held(coordinator.state, datetime.fromisoformat(now))
    return tuple(checkpoint.id for checkpoint in coordinator.state.retained if checkpoint.id not in held)


def delete_first(access: garbage.Access, now: str) -> tuple[int, ...]:
    with access() as one:
        ids = expired(one, now)
        for number in ids:
            found = one.state.checkpoint(number)
            assert found
            garbage._delete_checkpoint(one.store, one.keys, found, one.state, now)
        if ids:
            one.journal.append(c.Condemn(ids=ids, now=now, epoch=one.epoch))
            one.journal.append(c.Forget(ids=ids, epoch=one.epoch))
    return ids


def forget_first(access: garbage.Access, now: str) -> tuple[int, ...]:
    with access() as one:
        ids = expired(one, now)
        if ids:
            one.journal.append(c.Condemn(ids=ids, now=now, epoch=one.epoch))
        condemned = one.state.with_status(CONDEMNED)
        if condemned:
            one.journal.append(c.Forget(ids=tuple(found.id for found in condemned), epoch=one.epoch))
        for found in condemned:
            garbage._delete_checkpoint(one.store, one.keys, found, one.state, now)
    return ids


def restored_is_not_held(self: State) -> frozenset[int]:
    return frozenset(number for checkpoint in self.with_status(PENDING, "retained") for number in checkpoint.file_sets)


@contextmanager
def retired_without_epoch() -> Iterator[None]:
    nameless: dict[type[c.Command], Any] = {
        c.Condemn: lambda state, command: deletion.condemn(state, replace(command, epoch=None)),
        c.Forget: lambda state, command: deletion.forget(state, replace(command, epoch=None)),
    }
    with patch.dict(HANDLERS, nameless):
        yield


def everything_goes(self: Coordinator) -> None:
    self.store.delete_under(f"{self.keys.prefix}/state")
    DELETE_LEFTOVERS(self)


DELETE_LEFTOVERS = closing.delete_leftovers

DELETING = {
    "15": Bug("condemn that ignores restoring", nothing_restoring_is_held, "retiring_under_a_clear", ("P5", "P9")),
    "16": Bug("delete before condemn", replaced(garbage, "retire", delete_first), "retiring_under_a_restore", ("P4", "P5")),
    "17": Bug("forget before delete", replaced(garbage, "retire", forget_first), "retiring_under_a_driver", ("P12",)),
    "18": Bug("sweep takes a living epoch's file sets", replaced(State, "deletable", lambda self, path: True), "sweeping_under_a_driver", ("P12",)),
    "32": Bug("restored file sets not held", replaced(State, "referred", restored_is_not_held), "retiring_under_a_driver", ("P9",)),
    "i": Bug(
        "what a closed history leaves is deleted without asking for epochs", replaced(closing, "delete_leftovers", everything_goes),
        "closers_of_what_was_opened", ("P5", "P12"),
    ),
    "y": Bug(
        "released although a checkpoint refers to it", replaced(file_sets, "_retained", lambda state: set()),
        "releasing_under_a_successor", ("P5",),
    ),
    "g": Bug("condemned and forgotten by an attempt that is over", retired_without_epoch, "a_zombie", ("P3",)),
}  # fmt: skip

BUGS: dict[str, Bug] = JOURNAL | CHECKPOINTS | ATTEMPTS | DELETING

NO_PLACE = {
    "28": "wall clock deadline under skew: nothing in the protocol compares clocks; who aborts for a time-out has a monotonic one",
}
"""Those that the structure of the code leaves no place for. So it is with halves of others: of 44, *newest by entry instead of
id*, since the state keeps checkpoints by id and no order of completion; of 8, *a duplicate that goes on with its own file sets*,
since these are as good as the winner's, and transactions are due by the version that the entry names. And 6 alone is harmless:
``append`` decides again."""

LATER = {
    "no incremental states yet": ("19",),
}
