"""Mistakes about requests, savepoints, claims and stops, each as a small patch of the real code. Runs anywhere. As ``bugs``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any
from unittest.mock import patch

from airflow_checkpoint_provider.coordinator import garbage, savepoint, savepoint_target
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.savepoint_target import DisposedStub, Savepoint
from airflow_checkpoint_provider.protocol import (
    checkpoint_transitions,
    completion,
    deletion,
    requests,
    transitions,
    updates,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.commands import Decision
from airflow_checkpoint_provider.protocol.decisions import HANDLERS
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store, put
from tests.model import actors, savers
from tests.model.bugs import Bug, Patch, everything_older, replaced
from tests.model.explore import TRIES_TWICE


def folded(event: type[e.Event], fold: Callable[[State, Any], State]) -> Patch:
    return lambda: patch.dict(transitions.TRANSITIONS, {event: fold})


BRANCHED, COMPLETED = transitions.TRANSITIONS[e.BranchOpened], transitions.TRANSITIONS[e.CheckpointCompleted]
ENDED = transitions.TRANSITIONS[e.AttemptEnded]
PUT_SEAL, PUBLISH, DISPOSE = Coordinator._put_seal, savepoint.publish_due, savepoint_target.delete_savepoint
AT = datetime.fromisoformat(actors.AT)


# -- requests and stops ------------------------------------------------------------------------------------------------


@contextmanager
def suspended_afterwards() -> Iterator[None]:
    """The end of the attempt suspends the job, not the completion of its savepoint."""

    def ended(state: State, event: e.AttemptEnded) -> State:
        after = ENDED(state, event)
        return replace(after, suspended="stopped with a savepoint") if event.outcome == "suspended" else after

    def stop(self: actors.AtWork) -> bytes:
        stopped = any(kind_named(savepoint.kind).suspends for savepoint in self.coordinator.state.savepoints)
        return self.end("suspended") if stopped else self.known

    with (
        patch.object(completion, "_suspended_by", lambda checkpoint: ""),
        patch.dict(transitions.TRANSITIONS, {e.AttemptEnded: ended}),
        patch.dict(actors.STEPS, {"stop": stop}),
    ):
        yield


REQUESTS = {
    "27": Bug("suspension in an entry of its own", suspended_afterwards, "a_stop", ("P3",)),
    "j": Bug("the queue is served by another entry", replaced(requests, "serve_queue", lambda state: ()), "a_queue", ("P10",)),
    "k": Bug("a request is served whose attempt is over", replaced(State, "unserved", lambda self: ()), "a_queue", ("P3",)),
    "l": Bug("any number may be pending", replaced(requests, "may_run", lambda state, request: True), "a_queue", ("P10",)),
    "m": Bug("a pending savepoint subsumed", replaced(completion, "subsumed_by", everything_older), "a_savepoint_behind_a_checkpoint", ("P8",)),
}  # fmt: skip


# -- savepoints --------------------------------------------------------------------------------------------------------


def published_with_its_seal(self: Coordinator, number: int, body: bytes) -> bytes:
    found, checkpoint = PUT_SEAL(self, number, body), self.state.checkpoint(number)
    if checkpoint and checkpoint.target:
        put(self.store, savepoint.target_of(checkpoint).metadata, found, patience=TRIES_TWICE)
    return found


def confirmed_first(coordinator: Coordinator) -> None:
    for saved in coordinator.state.savepoints:
        coordinator.journal.append(c.ConfirmPublished(id=saved.id))
    PUBLISH(coordinator)


def interned(state: State, event: e.CheckpointCompleted) -> State:
    """A savepoint's file sets are entered as the history's are."""
    after = COMPLETED(state, event)
    after, numbers = checkpoint_transitions._intern(after, [path for saved in event.states for path in saved.file_sets])
    found = after.checkpoint(event.id)
    assert found
    assert found.completion
    wrong = replace(found, completion=replace(found.completion, file_sets=numbers))
    return replace(after, checkpoints=updates.swap(after.checkpoints, found, wrong))


def anything_is_first(state: State, event: e.CheckpointCompleted) -> State:
    after = COMPLETED(state, event)
    found = after.checkpoint(event.id)
    return replace(after, attempts=checkpoint_transitions._mark_attempts(after, found)) if found else after


def stub_last(store: Store, pointer: SavepointPointer, owner: str, by: str, at: str) -> None:
    savepoint_target.put_claim(store, pointer, owner, by, at)
    for name in store.folders(pointer.name):
        store.delete_under(f"{pointer.name}/{name}")
    store.overwrite(pointer.metadata, canonical(DisposedStub(by=by, at=at).to_json()))


def no_stub(store: Store, pointer: SavepointPointer, owner: str, by: str, at: str) -> None:
    DISPOSE(store, pointer, owner, by, at)
    store.delete([pointer.metadata])


@contextmanager
def a_policy_deletes_them() -> Iterator[None]:
    def retired(state: State, now: str) -> garbage.Retired:
        return garbage.Retired(
            tuple(checkpoint.id for checkpoint in state.retained if checkpoint.id not in deletion.held(state, AT))
        )

    def condemn(state: State, command: c.Condemn) -> Decision:
        return deletion.condemn(state, replace(command, disposing=True))

    with patch.object(garbage, "_retired", retired), patch.dict(HANDLERS, {c.Condemn: condemn}):
        yield


def claimed_in_silence(coordinator: Coordinator, pointer: SavepointPointer, by: str, now: str) -> Savepoint:
    found = savepoint_target.open_savepoint(pointer, coordinator.store)
    own = savepoint._own_history(coordinator.store, found.seal, pointer)
    if own is not None:
        savepoint._refuse_held(*own, now)
    savepoint_target.put_claim(found.store, pointer, coordinator.folder, by, now)
    return found


@contextmanager
def no_claim_is_held() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (deletion, garbage):
            stack.enter_context(patch.object(module, "held_claims", lambda state, now: frozenset()))
        yield


def counted_from_its_own(state: State, event: e.BranchOpened) -> State:
    return BRANCHED(state, replace(event, id_floor=0))


SAVEPOINTS = {
    "24": Bug("published before its entry", replaced(Coordinator, "_put_seal", published_with_its_seal), "a_savepoint", ("P8",)),
    "25": Bug("claim without lock", replaced(savepoint_target, "put_claim", lambda *arguments: None), "a_claim", ("P5", "P8")),
    "n": Bug("said to be published before it is", replaced(actors, "publish_due", confirmed_first), "a_savepoint", ("P8",)),
    "o": Bug(
        "a savepoint's file sets are the history's", folded(e.CheckpointCompleted, interned), "a_savepoint", ("P12",), walks=50,
    ),
    "p": Bug(
        "a savepoint frees the point that was restored", folded(e.CheckpointCompleted, anything_is_first),
        "a_savepoint_of_what_was_restored", ("P9",),
    ),
    "q": Bug(
        "disposed of without asking its history", replaced(savepoint, "_own_history", lambda *arguments: None),
        "a_savepoint_to_go_on_from", ("P5", "P8"),
    ),
    "r": Bug("the stub comes last", replaced(savepoint_target, "delete_savepoint", stub_last), "disposals", ("P8",)),
    "s": Bug("nothing is left of a savepoint", replaced(savepoint_target, "delete_savepoint", no_stub), "a_disposal", ("P8",)),
    "t": Bug("a policy deletes savepoints", a_policy_deletes_them, "disposals", ("P8",)),
    "u": Bug("a claimed base is not held", no_claim_is_held, "a_claim", ("P5",)),
    "w": Bug(
        "its own history is not told of a claim", replaced(savers, "claim", claimed_in_silence), "a_claim_under_a_restore", ("P5",),
    ),
    "v": Bug("ids begin anew after a savepoint from elsewhere", folded(e.BranchOpened, counted_from_its_own), "a_claim", ("P2",)),
}  # fmt: skip

BUGS: dict[str, Bug] = REQUESTS | SAVEPOINTS
