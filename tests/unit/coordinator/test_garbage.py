"""Deletion: condemn, delete, forget, in this order; and orphans (docs/inside/properties.md, P12). Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_checkpoint_provider.coordinator import garbage, journal
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import LARGEST_EVENTS, events_size
from airflow_checkpoint_provider.errors import Fenced, StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, FORGOTTEN, RETAINED
from airflow_checkpoint_provider.protocol.events import CheckpointsCondemned, Point, Request
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import ROWS, acknowledgement, bystander, driver, file_set, stage, take, upload
from tests.support.faults import Call, Fault, FaultyStore, Killed, virtual_time
from tests.support.garbage import orphans, refuse_to_delete, remove_orphans, retire
from tests.support.histories import at, launch
from tests.support.journals import KEYS
from tests.support.saved import memory

PREFIX = KEYS.prefix


def ended(coordinator: Coordinator, how: str = "finished") -> None:
    coordinator.journal.append(c.EndAttempt(epoch=coordinator.state.last_epoch, outcome=how))


def folders(store: MemoryStore) -> set[str]:
    """Return the folders of checkpoints and file sets."""
    keys = [key.removeprefix(f"{PREFIX}/").split("/") for key in store.objects]
    return {"/".join(key[: 3 if key[0] == "state" else 1]) for key in keys if key[0] != "journal"}


def three_of_an_attempt_that_is_over(store: MemoryStore | FaultyStore, how: str = "finished") -> Coordinator:
    """End an attempt with chk-1 to chk-3, of which one is kept; return the coordinator of the task."""
    coordinator = driver(store, retention=KeepLatest(1))
    for _ in range(3):
        take(coordinator)
    ended(coordinator, how)
    return bystander(store)


def recorded(store: FaultyStore) -> list[tuple[str, str]]:
    """Return a list that collects the requests that change something."""
    requests: list[tuple[str, str]] = []

    def plan(call: Call) -> Fault:
        if call.kind not in ("read", "list"):
            requests.append((call.kind, call.key.removeprefix(f"{PREFIX}/")))
        return Fault.NONE

    store.plan = plan
    return requests


def test_expired_checkpoints_are_condemned_deleted_and_forgotten_in_order() -> None:
    """B16, B17: the seal goes first, so that a partly deleted checkpoint is none; file sets go last."""
    store = FaultyStore(MemoryStore())
    coordinator = three_of_an_attempt_that_is_over(store)
    requests = recorded(store)
    assert retire(coordinator) == (1, 2)
    entry, *deletions, last = requests
    n = coordinator.state.n
    assert (entry, last) == (("create", f"journal/{n - 1:016d}"), ("create", f"journal/{n:016d}"))
    assert deletions == [
        ("delete", "chk-1/_metadata"),
        ("delete", "chk-1"),
        ("delete", "state/s1/1-n0nce"),
        ("delete", "chk-2/_metadata"),
        ("delete", "chk-2"),
        ("delete", "state/s2/1-n0nce"),
    ]
    assert [checkpoint.status for checkpoint in coordinator.state.checkpoints] == [FORGOTTEN, FORGOTTEN, RETAINED]


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
@pytest.mark.parametrize("at", range(1, 9))
def test_killed_deletion_is_finished_by_the_next_process(at: int, fault: Fault) -> None:
    """Killed at each of the eight requests that change something: no file is left over or missing."""
    objects = MemoryStore()
    store = FaultyStore(objects)
    coordinator = three_of_an_attempt_that_is_over(store)
    changes = 0

    def plan(call: Call) -> Fault:
        nonlocal changes
        changes += call.kind in ("create", "delete")
        return fault if changes == at else Fault.NONE

    store.plan = plan
    with pytest.raises(Killed):
        retire(coordinator)
    other = bystander(objects)
    retire(other)
    assert folders(objects) == {"chk-3", "state/s3/1-n0nce"}
    assert [checkpoint.status for checkpoint in other.state.checkpoints] == [FORGOTTEN, FORGOTTEN, RETAINED]
    assert retire(other) == ()


def recorded_as(step: str, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = getattr(garbage, step)

    def watched(*how: object) -> object:
        steps.append(step)
        return real(*how)

    monkeypatch.setattr(garbage, step, watched)


def test_as_many_are_condemned_and_forgotten_as_one_entry_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has kept all its checkpoints is to keep the newest."""
    coordinator = driver(MemoryStore(), retention=KeepLatest(1))
    for _ in range(24):
        take(coordinator)
    monkeypatch.setattr(garbage, "IDS_OF_ENTRY", 10)
    monkeypatch.setattr(journal, "LARGEST_EVENTS", 100)
    n, steps = coordinator.state.n, list[str]()
    for step in ("delete", "forget"):
        recorded_as(step, steps, monkeypatch)
    assert retire(coordinator) == tuple(range(1, 24))
    assert coordinator.state.n == n + 2 * 3
    assert steps == ["delete", "forget"] * 3, "a process may end before it has deleted all"
    assert [checkpoint.id for checkpoint in coordinator.state.with_status(RETAINED, CONDEMNED)] == [24]


def test_largest_part_of_what_has_expired_fits_into_one_entry() -> None:
    ids = tuple(range(10**17, 10**17 + 2500))
    claims = tuple(f"s3://lake/{'é' * 512}{number}" for number in range(50))
    parts = list(garbage.Retired(ids, claims).parts())
    assert [number for part in parts for number in part.ids] == [*ids]
    assert [claim for part in parts for claim in part.claims] == [*claims]
    for part in parts:
        assert events_size((CheckpointsCondemned(ids=part.ids, claims=part.claims),)) < LARGEST_EVENTS / 2


def test_orphans_make_room_for_the_entries_of_a_full_store() -> None:
    objects = MemoryStore()
    store = FaultyStore(objects)
    coordinator = three_of_an_attempt_that_is_over(store)
    upload(objects, coordinator, [file_set("lost")])

    def full(call: Call) -> Fault:
        lost = any("/state/lost/" in key for key in objects.objects)
        return Fault.NOT_SENT if call.kind == "create" and lost else Fault.NONE

    store.plan = full
    with virtual_time():
        collected = garbage.collect(garbage.unshared(coordinator), at(1))
    assert (collected.ids, collected.leftovers) == ((1, 2), 1)


def test_condemned_checkpoints_make_room_for_the_entries_of_a_full_store() -> None:
    """A deletion was killed, and the disk is full: the first attempt to condemn more fails, the second one has room."""
    objects = MemoryStore()
    store = FaultyStore(objects)
    coordinator = three_of_an_attempt_that_is_over(store)
    coordinator.journal.append(c.Condemn(ids=(1,), now=at(1)))
    store.plan = lambda call: (
        Fault.NOT_SENT if call.kind == "create" and "state/s1/1-n0nce" in folders(objects) else Fault.NONE
    )
    with virtual_time(), pytest.raises(StoreUnavailable):
        retire(coordinator)
    assert retire(coordinator) == (2,)


def test_checkpoint_condemned_by_another_process_is_deleted() -> None:
    store = MemoryStore()
    coordinator = three_of_an_attempt_that_is_over(store)
    coordinator.journal.append(c.Condemn(ids=(1,), now="2026-11-20T00:00:00Z"))
    assert [checkpoint.id for checkpoint in coordinator.state.with_status(CONDEMNED)] == [1]
    assert retire(bystander(store)) == (1, 2)


def test_deletion_beside_another_process_is_harmless() -> None:
    """A driver locks its journal for the two entries only; between them another driver starts, writes, and deletes the same."""
    store = MemoryStore()
    slow = three_of_an_attempt_that_is_over(store, "failed")
    condemning = garbage.condemn(slow, at(1))
    other = driver(store, retention=KeepLatest(1), try_number=2)
    assert retire(other) == (1, 2)
    deleted = garbage.delete(slow.store, slow.keys, condemning, garbage.Retired((1, 2)), at(1))
    take(other)
    assert garbage.forget(slow, deleted.retired) == (1, 2)
    left = folders(store)
    assert {"chk-4", "state/s4/2-n0nce"} <= left
    assert not left & {"chk-1", "chk-2", "state/s1/1-n0nce", "state/s2/1-n0nce"}


def test_delete_leaves_checkpoints_that_are_condemned_later() -> None:
    """Only the checkpoints condemned by the own entry are deleted."""
    store = MemoryStore()
    slow = three_of_an_attempt_that_is_over(store, "failed")
    condemning = garbage.condemn(slow, at(1))
    other = driver(store, retention=KeepLatest(1), try_number=2)
    take(other)
    garbage.condemn(other, at(1))
    slow.journal.catch_up()
    assert [checkpoint.id for checkpoint in slow.state.with_status(CONDEMNED)] == [1, 2, 3]
    part = garbage.Retired((1, 2, 3))
    assert garbage.delete(slow.store, slow.keys, condemning, part, at(1)).retired.ids == (1, 2)
    assert "chk-3" in folders(store)


def test_reused_file_set_is_kept() -> None:
    """B32: its checkpoint is deleted, and a newer one refers to the file set."""
    store = MemoryStore()
    coordinator = driver(store, retention=KeepLatest(1))
    take(coordinator)
    take(coordinator, stage("s1", 1))
    ended(coordinator)
    assert retire(bystander(store)) == (1,)
    assert folders(store) == {"chk-2", "state/s1/1-n0nce", "state/s2/1-n0nce"}


def test_file_sets_of_a_running_attempt_are_kept_until_it_ends() -> None:
    """B18: the DataFrames of the attempt read them. When it ends they are orphans."""
    store = MemoryStore()
    coordinator = driver(store, retention=KeepLatest(1))
    for _ in range(3):
        take(coordinator)
    assert retire(coordinator) == (1, 2)
    assert folders(store) == {"chk-3", "state/s1/1-n0nce", "state/s2/1-n0nce", "state/s3/1-n0nce"}
    assert remove_orphans(coordinator) == 0
    ended(coordinator)
    assert remove_orphans(coordinator) == 2
    assert folders(store) == {"chk-3", "state/s3/1-n0nce"}


def test_file_sets_of_the_restore_point_are_kept_while_the_attempt_runs() -> None:
    """B32: newer checkpoints of the attempt do not change that."""
    store = MemoryStore()
    take(driver(store, retention=KeepLatest(1)))
    second = driver(store, 2, retention=KeepLatest(1))
    take(second)
    assert retire(second) == (1,)
    assert "state/s1/1-n0nce" in folders(store)
    assert remove_orphans(second) == 0
    ended(second, "failed")
    assert remove_orphans(second) == 1
    assert folders(store) == {"chk-2", "state/s2/2-n0nce"}


def test_checkpoint_needed_since_the_last_read_is_kept() -> None:
    """The expired checkpoints were chosen on an old state; since then another run starts from chk-1."""
    store = MemoryStore()
    coordinator = driver(store, retention=KeepLatest(1))
    for _ in range(2):
        take(coordinator)
    sleeper = bystander(store)
    bystander(store).journal.append(launch("day-2", restore="chk-1", base=Point(id=1)))
    before = dict(store.objects)
    assert retire(sleeper) == ()
    assert store.objects == before


def test_replaced_driver_deletes_nothing() -> None:
    """P3: the policy of its successor may hold what its own policy would delete."""
    store = MemoryStore()
    sleeper = driver(store, retention=KeepLatest(1))
    for _ in range(2):
        take(sleeper)
    bystander(store).journal.append(launch(try_number=2))
    before = dict(store.objects)
    with pytest.raises(Fenced):
        retire(sleeper)
    assert store.objects == before


def test_keep_all_deletes_nothing() -> None:
    store = MemoryStore()
    coordinator = driver(store, retention=KeepAll())
    for _ in range(4):
        take(coordinator)
    before = dict(store.objects)
    assert retire(coordinator) == ()
    assert store.objects == before


def test_plan_of_a_run_that_is_over_lists_its_checkpoints_and_closes_its_history() -> None:
    store = MemoryStore()
    coordinator = driver(store, retention=KeepLatest(2), scope="day-1")
    for _ in range(3):
        take(coordinator)
    coordinator.journal.append(c.Condemn(ids=(1,), now=at(1)))
    living = garbage.plan(coordinator.state, at(1))
    assert (living.deletable.ids, living.close) == ((1,), False)
    assert living
    ended(coordinator)
    finished = garbage.plan(coordinator.state, at(1))
    assert (finished.condemned.ids, finished.retired.ids, finished.close) == ((1,), (2, 3), False)
    assert finished.deletable.ids == (1, 2, 3)
    assert garbage.plan(coordinator.state, at(31 * 24 * 60)).close


def test_plan_of_a_begun_closing_finishes_it() -> None:
    coordinator = driver(MemoryStore(), scope="day-1")
    assert not garbage.plan(coordinator.state, at(1))
    ended(coordinator)
    assert not garbage.plan(coordinator.state, at(1))
    coordinator.journal.append(c.CloseHistory(reason="the run finished", now=at(1)))
    begun = garbage.plan(coordinator.state, at(1))
    assert begun.close
    assert begun
    coordinator.journal.append(c.FinishClosing())
    assert not garbage.plan(coordinator.state, at(1))


def test_orphans_alone_are_garbage() -> None:
    coordinator = driver(MemoryStore())
    ended(coordinator)
    assert garbage.plan(coordinator.state, at(1), ["state/clean/1-z0mbie"])


# -- orphans -------------------------------------------------------------------------------------------------------------


def written(path: str) -> Callable[[MemoryStore], None]:
    return lambda store: store.objects.update({f"{PREFIX}/{path}": ROWS})


@pytest.mark.parametrize(
    ("path", "orphan"),
    [
        pytest.param("state/clean/1-z0mbie/part-0", True, id="a file set of an attempt that is over"),
        pytest.param("state/clean/1-z0mbie/_temporary/0/part-0", True, id="with what Spark left in it"),
        pytest.param("state/clean/2-l1ving/part-0", False, id="a file set of the living attempt"),
        pytest.param("state/clean/3-y0ung/part-0", False, id="a file set of an attempt that is not believed yet"),
        pytest.param("state/s1/1-n0nce/part-9", False, id="a file beside those of a file set that is referred to"),
        pytest.param("state/clean/notes/read-me", False, id="what was never a file set"),
        pytest.param("state/clean/0-first/part-0", False, id="an epoch that never was"),
        pytest.param("state/read-me", False, id="a file where file sets are"),
        pytest.param("chk-2/acks/-", True, id="an aborted checkpoint"),
        pytest.param("chk-2/_metadata", True, id="a seal whose entry lost to an abort"),
        pytest.param("chk-3/acks/-", False, id="the pending checkpoint"),
        pytest.param("chk-4/acks/-", False, id="a checkpoint that is not believed yet"),
        pytest.param("chk-9/acks/-", False, id="nor one far beyond"),
        pytest.param("chk-notes/read-me", False, id="what was never a checkpoint"),
        pytest.param("chk-\N{SUPERSCRIPT TWO}/read-me", False, id="no number that was ever given"),
        pytest.param("chk-02/read-me", False, id="nor this"),
        pytest.param("heartbeat/1", False, id="a heartbeat"),
    ],
)
def test_orphan_by_its_path(path: str, orphan: bool) -> None:
    """chk-1 is retained, chk-2 aborted, chk-3 pending; attempt 1 is over, attempt 2 lives."""
    store = MemoryStore()
    first = driver(store)
    take(first)
    first.abort(first.trigger(Request(token="two", timeout_s=600.0)), "expired")
    second = driver(store, 2)
    second.trigger(Request(token="three", timeout_s=600.0))
    before = dict(store.objects)
    written(path)(store)
    assert remove_orphans(second) == int(orphan)
    assert (f"{PREFIX}/{path}" not in store.objects) is orphan
    assert {key: store.objects.get(key) for key in before} == before


def test_condemned_checkpoint_is_no_orphan() -> None:
    """Its deletion has its own order."""
    store = MemoryStore()
    coordinator = three_of_an_attempt_that_is_over(store)
    coordinator.journal.append(c.Condemn(ids=(1,), now="2026-11-20T00:00:00Z"))
    assert orphans(coordinator) == ()


def test_files_of_a_replaced_attempt_are_orphans() -> None:
    """Files that an attempt writes after it was replaced are removed, now or later; those of its successor are kept."""
    store = MemoryStore()
    zombie = driver(store)
    number = zombie.trigger(Request(token="stage 'clean'", timeout_s=600.0))
    successor = driver(store, 2)
    kept = take(successor)
    for again in range(2):
        written(f"state/clean/1-late{again}/part-0")(store)
        zombie.acknowledge(
            acknowledgement(number, stage("clean", number, made_of=file_set("clean", nonce=f"late{again}")))
        )
        assert remove_orphans(successor) == 2
        assert folders(store) == {f"chk-{kept}", f"state/s{kept}/2-n0nce"}


def test_orphan_that_cannot_be_deleted_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    driver(store)
    for uid in "abc":
        written(f"state/{uid}/1-z0mbie/part-0")(store)
    refuse_to_delete(store, "/state/a/", monkeypatch)
    with pytest.raises(StoreDenied, match="of another user"):
        remove_orphans(driver(store, 2))
    assert folders(store) == {"state/a/1-z0mbie"}


def test_orphans_lists_what_remove_orphans_deletes() -> None:
    store = MemoryStore()
    coordinator = driver(store)
    written("state/clean/1-z0mbie/part-0")(store)
    successor = driver(store, 2)
    assert orphans(coordinator) == ()
    assert orphans(successor) == ("state/clean/1-z0mbie",)
    assert f"{PREFIX}/state/clean/1-z0mbie/part-0" in store.objects


def test_remove_orphans_without_orphans_deletes_nothing() -> None:
    store = MemoryStore()
    assert remove_orphans(driver(store)) == 0


def test_savepoint_is_kept_and_delays_no_deletion() -> None:
    """No policy deletes a savepoint, and expired checkpoints are not refused because of it."""
    coordinator = driver(MemoryStore(), retention=KeepLatest(1))
    number = coordinator.trigger(Request(token="asked", kind="savepoint", origin="cli", folder=memory().uri))
    coordinator.acknowledge(acknowledgement(number, stage("s", number)))
    coordinator.complete(number)
    assert (take(coordinator), take(coordinator), take(coordinator)) == (2, 3, 4)
    assert retire(coordinator) == (2, 3)
    assert [checkpoint.id for checkpoint in coordinator.state.retained] == [1, 4]
