"""What a deliberate restore names, and what an attempt of the past had to choose from. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator.restore import (
    Restored,
    RestoreTarget,
    candidates_at_start,
    examine,
    id_floor_of,
    locate_checkpoint,
)
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.keys import Pointer, pointer_of
from tests.support.acknowledgements import bystander, driver, take
from tests.support.faults import FaultyStore
from tests.support.histories import History
from tests.support.journals import KEYS
from tests.support.saved import Saved, memory

# -- what an attempt had to choose from ------------------------------------------------------------------------------------


def lived() -> History:
    """By attempt 1 chk-1 to chk-3 completed, chk-4 and chk-5 aborted; by attempt 2 chk-6. Then chk-1 went."""
    history = History()
    history.started()
    for _ in range(3):
        history.completed()
    history.do(c.Abort(id=history.triggered(), reason="expired"))
    history.triggered()
    history.started(try_number=2)
    history.completed()
    history.condemned(1)
    return history


def told(restored: Restored) -> list[tuple[int, str, str, int | None]]:
    return [(one.checkpoint.id, one.verdict, one.why, one.files) for one in restored.candidates]


NEVER_SEALED = [(5, "rejected", "never sealed", 0), (4, "rejected", "never sealed", 0)]


@pytest.mark.parametrize(
    ("point", "epoch", "candidates"),
    [
        (Point(id=3), 2, [*NEVER_SEALED, (3, "chosen", "", None), (2, "older", "", 0), (1, "older", "deleted by now", 0)]),
        (Point(id=2), 2, [*NEVER_SEALED, (2, "chosen", "", None), (1, "older", "deleted by now", 0)]),
        (Point(pointer="file:///lake/jobs/other/job/chk-3"), 2, NEVER_SEALED),
        (None, 2, NEVER_SEALED),
        (None, 1, []),
        (Point(id=6), 3, [(6, "chosen", "", None), (3, "older", "", 0), (2, "older", "", 0), (1, "older", "deleted by now", 0)]),
    ],
)  # fmt: skip
def test_what_an_attempt_had_to_choose_from(
    point: Point | None, epoch: int, candidates: list[tuple[int, str, str, int | None]]
) -> None:
    """What earlier attempts had triggered; newest first."""
    restored = candidates_at_start(lived().state, point, epoch)
    assert told(restored) == candidates
    assert restored.point == point
    assert (restored.seal, restored.store) == (None, None), "nothing was looked at"


def test_what_is_not_listed_any_more_is_not_told() -> None:
    state = lived().state
    assert told(candidates_at_start(replace(state, checkpoints=()), Point(id=3), 2)) == []


# -- words ---------------------------------------------------------------------------------------------------------------


def two_tries() -> FaultyStore:
    """chk-1 by the first, chk-2 and chk-3 by the second, of a run that started with nothing."""
    store = FaultyStore(memory())
    take(driver(store, retention=KeepAll()))
    second = driver(store, 2, retention=KeepAll())
    take(second), take(second)
    return store


@pytest.mark.parametrize(
    ("where", "number"), [("latest", 3), ("run-start", None), ("chk-2", 2), ("1", 1), ("none", None)]
)
def test_what_is_named(where: str, number: int | None) -> None:
    coordinator = bystander(two_tries())
    going = RestoreTarget(coordinator, where, "day-1")
    found = going.look(coordinator.state)
    assert found == (Point(id=number) if number else None)
    assert going.restored.point == found
    assert (going.restored.seal is None) is (number is None)


def test_where_a_run_started_that_began_from_a_checkpoint() -> None:
    store = two_tries()
    coordinator = bystander(store)
    (run,) = coordinator.state.runs
    state = replace(coordinator.state, runs=(replace(run, started_from=Point(id=2)),))
    assert RestoreTarget(coordinator, "run-start", "day-1").look(state) == Point(id=2)


def test_where_a_run_started_that_is_not_listed() -> None:
    coordinator = bystander(two_tries())
    with pytest.raises(CheckpointNotFound, match="run 'day-9' is not listed any more"):
        RestoreTarget(coordinator, "run-start", "day-9").look(coordinator.state)


def test_it_is_looked_at_again_only_where_another_is_meant() -> None:
    """The journal asks again whenever its state moved; a checkpoint is read once."""
    store = two_tries()
    coordinator = bystander(store)
    going = RestoreTarget(coordinator, "latest", "day-1")
    first = coordinator.state
    going.look(first)
    store.requests.clear()
    going.look(replace(first, n=first.n + 1))
    assert store.requests == {}
    assert going.look(replace(first, checkpoints=first.checkpoints[:2])) == Point(id=2)
    assert store.requests["list"] == 1
    assert going.restored.point == Point(id=2)


# -- from elsewhere ------------------------------------------------------------------------------------------------------


def test_ids_go_on_above_that_of_what_lies_elsewhere() -> None:
    saved = Saved(memory())
    saved.publish()
    number = saved.coordinator.state.retained[0].id
    savepoint = Point(pointer=str(saved.pointer))
    assert id_floor_of(savepoint, saved.target) == number
    assert id_floor_of(Point(pointer="file:///lake/jobs/other/job/chk-41"), saved.target) == 41
    assert [id_floor_of(point, saved.target) for point in (None, Point(id=7))] == [0, 0]
    assert examine(saved.coordinator, saved.coordinator.state, savepoint).id_floor == number
    assert examine(saved.coordinator, saved.coordinator.state, Point(id=number)).id_floor == 0
    assert Restored().id_floor == 0


def test_a_savepoint_is_told_as_its_journal_listed_it() -> None:
    saved = Saved(memory())
    saved.publish()
    (known,) = saved.coordinator.state.retained
    (candidate,) = examine(saved.coordinator, saved.coordinator.state, Point(pointer=str(saved.pointer))).candidates
    one = candidate.checkpoint
    assert (one.id, one.status, one.digest, one.bytes) == (known.id, known.status, known.digest, known.bytes)
    assert (one.target, one.kind, one.epochs) == (str(saved.pointer), known.kind, known.epochs)
    assert [state.uid for state in one.states] == [state.uid for state in known.states]


def test_a_pending_one_is_found_only_by_who_asks_for_it() -> None:
    store = memory()
    coordinator = driver(store)
    take(coordinator)
    pointer = pointer_of(f"{store.uri}/{KEYS.prefix}/chk-{coordinator.trigger(Request(token='asked'))}")
    assert isinstance(pointer, Pointer)
    assert locate_checkpoint(pointer, store, pending=True)[1].id == 2
    with pytest.raises(CheckpointNotFound, match="not completed yet"):
        locate_checkpoint(pointer, store)
    coordinator.abort(2, "expired")
    with pytest.raises(CheckpointNotFound, match="it was aborted"):
        locate_checkpoint(pointer, store, pending=True)


@pytest.mark.parametrize(("number", "advice"), [(2, "chk-1 is the next older one"), (1, "there is no older one")])
def test_damage_says_where_to_go_instead(number: int, advice: str) -> None:
    store = two_tries()
    coordinator = bystander(store)
    store.delete([KEYS.seal(number)])
    with pytest.raises(Damaged) as hurt:
        examine(coordinator, coordinator.state, Point(id=number))
    assert advice in hurt.value.message
    where = "chk-1" if number == 2 else "run-start"
    assert hurt.value.message.rsplit(": ", 1)[1].find(where) > 0
