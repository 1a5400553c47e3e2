"""The target of a deliberate restore, and the candidates that a past attempt had. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator.restore import (
    Restored,
    candidates_at_start,
    examine,
    id_floor_of,
    locate_checkpoint,
)
from airflow_checkpoint_provider.coordinator.restore_target import RestoreTarget
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.keys import Pointer, pointer_of
from tests.support.acknowledgements import acknowledgement, bystander, driver, take
from tests.support.faults import Fault, FaultyStore
from tests.support.histories import History
from tests.support.journals import KEYS
from tests.support.saved import Saved, memory

# -- candidates of a past attempt ------------------------------------------------------------------------------------------


def lived() -> History:
    """Attempt 1 completed chk-1 to chk-3 and aborted chk-4 and chk-5; attempt 2 completed chk-6; chk-1 is condemned."""
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


def verdicts(restored: Restored) -> list[tuple[int, str, str, int | None]]:
    return [
        (candidate.checkpoint.id, candidate.verdict, candidate.why, candidate.files)
        for candidate in restored.candidates
    ]


NEVER_SEALED = [(5, "rejected", "never sealed", 0), (4, "rejected", "never sealed", 0)]


@pytest.mark.parametrize(
    ("point", "epoch", "candidates"),
    [
        (Point(id=3), 2, [*NEVER_SEALED, (3, "chosen", "", None), (2, "older", "", 0), (1, "older", "deleted since", 0)]),
        (Point(id=2), 2, [*NEVER_SEALED, (2, "chosen", "", None), (1, "older", "deleted since", 0)]),
        (Point(pointer="file:///lake/jobs/other/job/chk-3"), 2, NEVER_SEALED),
        (None, 2, NEVER_SEALED),
        (None, 1, []),
        (Point(id=6), 3, [(6, "chosen", "", None), (3, "older", "", 0), (2, "older", "", 0), (1, "older", "deleted since", 0)]),
    ],
)  # fmt: skip
def test_candidates_of_a_past_attempt_are_listed_newest_first(
    point: Point | None, epoch: int, candidates: list[tuple[int, str, str, int | None]]
) -> None:
    """Candidates are the checkpoints that earlier attempts triggered."""
    state = lived().state
    restored = candidates_at_start(
        state, state.launches[0], replace(state.attempts[0], epoch=epoch, restore_point=point)
    )
    assert verdicts(restored) == candidates
    assert restored.point == point
    assert (restored.seal, restored.store) == (None, None), "no file is read"


def test_candidates_no_longer_listed_are_left_out() -> None:
    state = lived().state
    assert verdicts(candidates_at_start(replace(state, checkpoints=()), state.launches[0], state.attempts[1])) == []


# -- targets -------------------------------------------------------------------------------------------------------------


def two_tries() -> FaultyStore:
    """Return the store of a run from nothing: attempt 1 made chk-1, attempt 2 chk-2 and chk-3."""
    store = FaultyStore(memory())
    take(driver(store, retention=KeepAll()))
    second = driver(store, 2, retention=KeepAll())
    take(second), take(second)
    return store


@pytest.mark.parametrize(
    ("where", "number"), [("latest", 3), ("run-start", None), ("chk-2", 2), ("1", 1), ("none", None)]
)
def test_target_of_a_restore_by_name(where: str, number: int | None) -> None:
    coordinator = bystander(two_tries())
    going = RestoreTarget(coordinator, where, "day-1")
    found = going.verify(coordinator.state)
    assert found == (Point(id=number) if number else None)
    assert going.restored.point == found
    assert (going.restored.seal is None) is (number is None)


def test_run_start_is_the_checkpoint_the_run_began_from() -> None:
    store = two_tries()
    coordinator = bystander(store)
    (run,) = coordinator.state.runs
    state = replace(coordinator.state, runs=(replace(run, started_from=Point(id=2)),))
    assert RestoreTarget(coordinator, "run-start", "day-1").verify(state) == Point(id=2)


def test_run_start_of_an_unlisted_run_is_refused() -> None:
    coordinator = bystander(two_tries())
    with pytest.raises(CheckpointNotFound, match="run 'day-9' is not listed any more"):
        RestoreTarget(coordinator, "run-start", "day-9").verify(coordinator.state)


def test_target_is_read_again_only_if_it_changed() -> None:
    """The journal asks again whenever its state changed; each checkpoint is read once."""
    store = two_tries()
    coordinator = bystander(store)
    going = RestoreTarget(coordinator, "latest", "day-1")
    first = coordinator.state
    going.verify(first)
    store.requests.clear()
    going.verify(replace(first, n=first.n + 1))
    assert store.requests == {}
    assert going.verify(replace(first, checkpoints=first.checkpoints[:2])) == Point(id=2)
    assert store.requests["list"] == 1
    assert going.restored.point == Point(id=2)


# -- from elsewhere ------------------------------------------------------------------------------------------------------


def test_ids_continue_above_the_id_of_a_foreign_point() -> None:
    saved = Saved(memory())
    saved.publish()
    number = saved.coordinator.state.retained[0].id
    savepoint = Point(pointer=str(saved.pointer))
    assert id_floor_of(savepoint, saved.target) == number
    assert id_floor_of(Point(pointer="file:///lake/jobs/other/job/chk-41"), saved.target) == 41
    assert [id_floor_of(point, saved.target) for point in (None, Point(id=7))] == [0, 0]
    assert examine(saved.coordinator, saved.coordinator.state, savepoint, told=savepoint.pointer).id_floor == number
    assert examine(saved.coordinator, saved.coordinator.state, Point(id=number)).id_floor == 0
    assert Restored().id_floor == 0


def test_candidate_of_a_savepoint_has_the_fields_of_its_history() -> None:
    saved = Saved(memory())
    saved.publish()
    (known,) = saved.coordinator.state.retained
    (candidate,) = examine(
        saved.coordinator, saved.coordinator.state, Point(pointer=str(saved.pointer)), told=str(saved.pointer)
    ).candidates
    checkpoint = candidate.checkpoint
    assert (checkpoint.id, checkpoint.status, checkpoint.digest, checkpoint.bytes) == (
        known.id,
        known.status,
        known.digest,
        known.bytes,
    )
    assert (checkpoint.target, checkpoint.kind, checkpoint.epochs) == (str(saved.pointer), known.kind, known.epochs)
    assert [state.uid for state in checkpoint.states] == [state.uid for state in known.states]


def test_pending_checkpoint_is_located_only_on_request() -> None:
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


@pytest.mark.parametrize(
    ("hurt", "advice", "where"),
    [
        ([2], "chk-1 is the next older one that is whole", "chk-1"),
        ([1], "chk-3 is the newest one that is whole", "chk-3"),
        ([3, 2, 1], "there is no other one that is whole", "none"),
    ],
)
def test_damaged_checkpoint_names_another_one_that_is_whole(hurt: list[int], advice: str, where: str) -> None:
    store = two_tries()
    coordinator = bystander(store)
    store.delete([KEYS.seal(number) for number in hurt])
    (run,) = coordinator.state.runs
    coordinator.journal.state = replace(coordinator.state, runs=(replace(run, started_from=Point(id=1)),))
    with pytest.raises(Damaged) as damage:
        examine(coordinator, coordinator.state, Point(id=hurt[0]))
    assert advice in damage.value.message
    assert damage.value.message.endswith(f"--from {where}")


def test_search_for_another_one_compares_no_checkpoint_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with KeepWithin(days=7) may keep ten thousand."""
    coordinator = bystander(two_tries())
    one = coordinator.state.checkpoints[0]
    many = tuple(replace(one, id=number) for number in range(101, 161))  # none of them has files
    coordinator.journal.state = replace(coordinator.state, checkpoints=many)
    compared, equals = list[Checkpoint](), Checkpoint.__eq__

    def counted(left: Checkpoint, right: object) -> bool:
        compared.append(left)
        return equals(left, right)

    monkeypatch.setattr(Checkpoint, "__eq__", counted)
    with pytest.raises(Damaged, match="there is no other one that is whole"):
        examine(coordinator, coordinator.state, Point(id=130))
    assert len(compared) <= len(many)


@pytest.mark.parametrize("start", [None, Point(pointer="memory://other/s")])
def test_damaged_checkpoint_alone_names_the_beginning_of_the_run(start: Point | None) -> None:
    store = two_tries()
    coordinator = bystander(store)
    store.delete([KEYS.seal(number) for number in (1, 2, 3)])
    (run,) = coordinator.state.runs
    coordinator.journal.state = replace(coordinator.state, runs=(replace(run, started_from=start),))
    with pytest.raises(Damaged, match="--from run-start "):
        examine(coordinator, coordinator.state, Point(id=3))


def test_store_error_at_an_older_checkpoint_does_not_hide_the_damage() -> None:
    store = two_tries()
    store.delete([KEYS.seal(2)])
    coordinator = bystander(store)
    store.plan = lambda call: Fault.DENIED if call.key == KEYS.seal(1) else Fault.NONE
    with pytest.raises(Damaged, match=r"chk-2 cannot be restored.*chk-3 is the newest one"):
        examine(coordinator, coordinator.state, Point(id=2))


def test_damaged_savepoint_of_a_stop_names_the_checkpoint_with_the_higher_id() -> None:
    """Its barrier had begun before the stop was requested, so the checkpoint is the older point."""
    coordinator = driver(memory())
    coordinator.trigger(Request(token="stop", origin="task", kind="suspend_savepoint", folder="memory://stops"))
    take(coordinator)
    (stop,) = coordinator.state.pending
    coordinator.acknowledge(acknowledgement(stop.id))
    coordinator.complete(stop.id)
    assert coordinator.state.restore_point() == Point(id=1)
    coordinator.store.delete([KEYS.seal(1)])
    with pytest.raises(Damaged, match="chk-2 is the next older one that is whole"):
        examine(coordinator, coordinator.state, Point(id=1))
