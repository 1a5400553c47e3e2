"""One checkpoint through acknowledgement, seal and entry (docs/protocol.md, P4). Runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, state_entries
from airflow_checkpoint_provider.errors import (
    CheckpointNotFound,
    CommitStateUnknown,
    Damaged,
    Fenced,
    InvalidConfig,
    NotPending,
    NotSupportedYet,
    OtherIncarnation,
    Queued,
    StoreMisconfigured,
    TooLarge,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, digest
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import acknowledgement, bystander, driver, file_set, stage, take, value
from tests.support.faults import Call, Fault, FaultyStore, virtual_time
from tests.support.garbage import expire
from tests.support.histories import launch
from tests.support.journals import KEYS

SEAL = KEYS.seal(1)
ACK = KEYS.acknowledgement(1, "")


@pytest.fixture(autouse=True)
def no_time_passes() -> Iterator[None]:
    with virtual_time():
        yield


def only(coordinator: Coordinator) -> Checkpoint:
    (found,) = coordinator.journal.catch_up().checkpoints
    return found


def triggered(store: MemoryStore | FaultyStore) -> Coordinator:
    coordinator = driver(store)
    coordinator.trigger(Request(token="stage 'clean'", timeout_s=600.0))
    return coordinator


def acknowledged(store: MemoryStore | FaultyStore) -> Coordinator:
    coordinator = triggered(store)
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1), value("count", 1, {"rows": 7})))
    return coordinator


def sealed(store: MemoryStore | FaultyStore) -> Coordinator:
    coordinator = acknowledged(store)
    coordinator.complete(1)
    return coordinator


# -- trigger and acknowledgement -----------------------------------------------------------------------------------------


def test_a_request_is_answered_with_its_checkpoint() -> None:
    store = MemoryStore()
    coordinator = driver(store)
    assert coordinator.trigger(Request(token="one", timeout_s=600.0)) == 1
    assert coordinator.trigger(Request(token="one", timeout_s=600.0)) == 1
    assert bystander(store).trigger(Request(token="one", timeout_s=600.0)) == 1


def test_the_first_acknowledgement_counts_and_the_second_hears_it() -> None:
    """B8: a duplicate goes on with the winner's file sets, not with its own."""
    store = MemoryStore()
    coordinator, other = triggered(store), bystander(store)
    theirs = acknowledgement(1, stage("clean", 1, made_of=file_set("clean", nonce="theirs")), nonce="theirs")
    ours = acknowledgement(1, stage("clean", 1, made_of=file_set("clean", nonce="ours")))
    assert other.acknowledge(theirs) == theirs
    assert coordinator.acknowledge(ours) == theirs
    coordinator.complete(1)
    (one,) = coordinator.read_seal(only(coordinator)).states.values()
    assert one.file_sets[0].path == "state/clean/1-theirs"
    assert [one.path for one in coordinator.state.file_sets] == ["state/clean/1-theirs"]


def test_an_acknowledgement_that_may_not_stand_is_unknown() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = triggered(store)
    store.plan = lambda call: Fault.DROPPED if call.kind == "create" else Fault.NONE
    with pytest.raises(CommitStateUnknown):
        coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))


@pytest.mark.parametrize(
    "act",
    [
        lambda coordinator: coordinator.acknowledge(acknowledgement(1, stage("clean", 1))),
        lambda coordinator: bystander(coordinator.store).complete(1),
    ],
    ids=["the driver puts its own", "somebody completes"],
)
def test_what_a_dead_incarnation_left_under_the_same_id_is_refused(act: Callable[[Coordinator], object]) -> None:
    """Somebody deleted the journal by hand, and not the checkpoints: their rows are not this history's."""
    store = MemoryStore()
    coordinator = triggered(store)
    store.create(ACK, acknowledgement(1, stage("clean", 1), inc="an0ther").to_bytes())
    with pytest.raises(OtherIncarnation, match=r"delete .*chk-1"):
        act(coordinator)
    assert SEAL not in store.objects


# -- seal and entry ------------------------------------------------------------------------------------------------------


def test_the_entry_has_the_digest_of_the_seal_and_the_seal_every_state() -> None:
    """P4."""
    store = MemoryStore()
    coordinator = sealed(store)
    found = only(coordinator)
    assert (found.status, found.digest) == (RETAINED, digest(store.objects[SEAL]))
    seal = coordinator.read_seal(found)
    assert sorted(seal.states) == ["clean", "count"]
    assert seal.applications[""] == Acknowledgement.from_bytes(store.objects[ACK])
    assert [(state.uid, state.new, state.bytes) for state in found.states] == [("clean", True, 38), ("count", True, 0)]


def test_every_coordinator_builds_the_same_seal() -> None:
    """From the trigger's entry and the acknowledgements alone: no clock, sorted."""
    seals = set()
    for finish in (lambda coordinator, store: coordinator, lambda coordinator, store: bystander(store)):
        store = MemoryStore()
        finish(acknowledged(store), store).complete(1)
        seals.add(store.objects[SEAL])
    assert len(seals) == 1


def test_who_comes_second_is_done_already() -> None:
    store = MemoryStore()
    coordinator, other = sealed(store), bystander(store)
    for each in (coordinator, other):
        assert each.complete(1).done == c.DoneAlready(1)


def test_a_seal_without_its_entry_is_completed_by_anyone() -> None:
    """B9: its coordinator died in between; the digest is of what stands there."""
    store = MemoryStore()
    acknowledged(store)
    copy = MemoryStore()
    copy.objects = dict(store.objects)
    bystander(copy).complete(1)
    store.create(SEAL, copy.objects[SEAL])
    bystander(store).complete(1)
    assert only(bystander(store)).digest == digest(copy.objects[SEAL])


def test_the_digest_is_of_what_was_read() -> None:
    """B9: a newer version sealed the same acknowledgements with a field that this one would not write."""
    store = MemoryStore()
    acknowledged(store)
    copy = MemoryStore()
    copy.objects = dict(store.objects)
    bystander(copy).complete(1)
    store.create(SEAL, canonical(json.loads(copy.objects[SEAL]) | {"later": "kept"}))
    coordinator = bystander(store)
    coordinator.complete(1)
    assert only(coordinator).digest == digest(store.objects[SEAL])
    assert coordinator.read_seal(only(coordinator)).extra == {"later": "kept"}


def test_nothing_is_sealed_before_everybody_acknowledged() -> None:
    """B10: a seal is put once. One that was put too early would be the checkpoint's for good, without its states."""
    store = MemoryStore()
    coordinator = triggered(store)
    with pytest.raises(NotPending, match="not acknowledged"):
        bystander(store).complete(1)
    assert SEAL not in store.objects
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    bystander(store).complete(1)
    assert sorted(coordinator.read_seal(only(coordinator)).states) == ["clean"]


def test_an_attempt_acknowledges_only_what_waits_for_it() -> None:
    """P3, P4: a zombie sees its successor's checkpoint pending. Its word, put first, would stand for the successor's."""
    store = MemoryStore()
    zombie, successor = driver(store), driver(store, 2)
    number = successor.trigger(Request(token="stage 'clean'", timeout_s=600.0))
    zombie.journal.catch_up()
    with pytest.raises(Fenced, match="waits for attempt 2"):
        zombie.acknowledge(acknowledgement(number, stage("clean", number), epoch=1))
    assert ACK not in store.objects


def test_an_aborted_one_is_not_completed_by_its_acknowledgement() -> None:
    store = MemoryStore()
    coordinator = triggered(store)
    bystander(store).abort(1, "expired")
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    with pytest.raises(NotPending, match="expired"):
        coordinator.complete(1)
    assert only(coordinator).status == ABORTED


def test_a_completed_one_is_completed_for_ever() -> None:
    """P11: asked again when it was deleted long since."""
    store = MemoryStore()
    coordinator = driver(store)
    for _ in range(3):
        take(coordinator)
    assert expire(coordinator) == (1,)
    assert coordinator.complete(1).done == c.DoneAlready(1)
    assert SEAL not in store.objects


def test_one_that_nobody_triggered_is_not_found() -> None:
    with pytest.raises(CheckpointNotFound, match="chk-9"):
        driver(MemoryStore()).complete(9)


def earlier(store: MemoryStore) -> bytes:
    """A seal of the same checkpoint with other rows in it."""
    stands = Seal(
        inc="1ncarnation", job="flights.delays", scope="", item=None, id=1, kind="checkpoint", branch=0, epochs=(1,), plan=("",),
        applications={"": acknowledgement(1, stage("clean", 1, made_of=file_set("clean", nonce="other")), nonce="other")},
    )  # fmt: skip
    return stands.to_bytes()


@pytest.mark.parametrize(
    "body",
    [lambda store: b"", lambda store: b'{"v":1', lambda store: canonical({"v": 1}), earlier],
    ids=["empty", "torn", "not a seal", "another seal"],
)
def test_what_is_no_seal_of_these_acknowledgements_is_not_completed(body: Callable[[MemoryStore], bytes]) -> None:
    """P4: it stays pending, and can be aborted."""
    store = MemoryStore()
    coordinator = acknowledged(store)
    store.create(SEAL, body(store))
    with pytest.raises(Damaged):
        coordinator.complete(1)
    assert only(coordinator).status == PENDING
    coordinator.abort(1, "store failed", phase="seal")
    assert only(coordinator).status == ABORTED


def test_a_damaged_acknowledgement_is_damaged() -> None:
    store = MemoryStore()
    acknowledged(store)
    store.objects[ACK] = b'{"v":1,"inc":'
    with pytest.raises(Damaged):
        bystander(store).complete(1)
    assert SEAL not in store.objects


@pytest.mark.parametrize(
    ("hurt", "says"),
    [
        (lambda objects: objects.pop(SEAL), "is missing"),
        (lambda objects: objects.update({SEAL: objects[SEAL] + b" "}), "is not what the journal says"),
        (lambda objects: objects.update({SEAL: b""}), "is not what the journal says"),
    ],
    ids=["missing", "other bytes", "empty"],
)
def test_a_seal_that_is_not_the_one_that_was_completed_is_damaged(
    hurt: Callable[[dict[str, bytes]], object], says: str
) -> None:
    store = MemoryStore()
    coordinator = sealed(store)
    hurt(store.objects)
    with pytest.raises(Damaged, match=says):
        coordinator.read_seal(only(coordinator))


def test_a_lost_answer_to_the_seal_is_settled() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = acknowledged(store)
    store.plan = lambda call: Fault.LOST if call.kind == "create" and call.key == SEAL else Fault.NONE
    assert coordinator.complete(1).done is None
    assert only(coordinator).status == RETAINED


def silent(call: Call) -> Fault:
    return Fault.DROPPED if call.kind == "create" and call.key == SEAL else Fault.NONE


def test_silence_about_the_seal_is_unknown_and_the_checkpoint_stays_pending() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = acknowledged(store)
    store.plan = silent
    with pytest.raises(CommitStateUnknown, match="chk-1"):
        coordinator.complete(1)
    assert only(coordinator).status == PENDING
    store.plan = lambda call: Fault.NONE
    coordinator.complete(1)
    assert only(coordinator).status == RETAINED


def test_one_that_does_not_fit_into_an_entry_is_aborted() -> None:
    """Left pending, it would be in the way of every later one."""
    store = MemoryStore()
    coordinator = triggered(store)
    many = (stage(f"state-{n:04d}", 1) for n in range(1200))
    coordinator.acknowledge(acknowledgement(1, *many))
    with pytest.raises(TooLarge):
        coordinator.complete(1)
    found = only(coordinator)
    assert (found.status, found.reason) == (ABORTED, "too many file sets")


def test_an_entry_tells_what_is_new_from_what_was_handed_on() -> None:
    seal = Seal(
        inc="i", job="j", scope="", item=None, id=2, kind="checkpoint", branch=0, epochs=(1,), plan=("",),
        applications={"": acknowledgement(2, stage("joined", 2), stage("clean", 1))},
    )  # fmt: skip
    assert [(state.uid, state.new) for state in state_entries(seal)] == [("clean", False), ("joined", True)]


# -- before an effect ----------------------------------------------------------------------------------------------------


def test_an_attempt_that_is_over_is_told_so_before_its_next_effect() -> None:
    store = MemoryStore()
    coordinator, other = driver(store), bystander(store)
    coordinator.check_not_fenced()
    other.journal.append(launch(try_number=2))
    with pytest.raises(Fenced) as caught:
        coordinator.check_not_fenced()
    assert caught.value.about["epoch"] == 1
    other.check_not_fenced()


def test_what_a_zombie_sends_changes_nothing() -> None:
    """P3."""
    store = MemoryStore()
    zombie = triggered(store)
    bystander(store).journal.append(launch(try_number=2))
    zombie.acknowledge(acknowledgement(1, stage("clean", 1)))
    with pytest.raises(Fenced):
        zombie.complete(1)
    with pytest.raises(Fenced):
        zombie.trigger(Request(token="stage 'joined'", timeout_s=600.0))
    assert only(zombie).status == ABORTED


# -- requests ------------------------------------------------------------------------------------------------------------


def test_who_waits_in_the_queue_looks_with_one_read() -> None:
    store = FaultyStore(MemoryStore())
    asking = driver(store)
    asking.epoch = None
    asking.trigger(Request(token="a", origin="task"))
    with pytest.raises(Queued, match="1 of 1"):
        asking.trigger(Request(token="b", origin="task"))
    store.requests.clear()
    for looks in range(1, 8):
        with pytest.raises(Queued):
            asking.trigger(Request(token="b", origin="task"))
        assert store.requests == {"read": looks}


def test_a_savepoint_needs_a_target_that_is_one() -> None:
    coordinator = driver(MemoryStore())
    with pytest.raises(InvalidConfig, match="needs target="):
        coordinator.trigger(Request(token="a", origin="task", kind="savepoint"))
    with pytest.raises(StoreMisconfigured):
        coordinator.trigger(Request(token="a", origin="task", kind="savepoint", folder="ftp://somewhere"))
    assert not coordinator.state.pending


def test_a_savepoint_that_drains_is_refused_by_name() -> None:
    coordinator = driver(MemoryStore())
    request = Request(token="a", origin="task", kind="terminate_savepoint", folder="memory://drained")
    with pytest.raises(NotSupportedYet, match="kind='terminate_savepoint': this version does not end the data first"):
        coordinator.trigger(request)
    assert not coordinator.state.pending
