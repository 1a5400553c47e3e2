"""One checkpoint through acknowledgement, seal and entry (docs/inside/properties.md, P4). Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, state_entries
from airflow_checkpoint_provider.errors import (
    CheckpointNotFound,
    CommitStateUnknown,
    Damaged,
    Fenced,
    InvalidConfig,
    NotPending,
    OtherIncarnation,
    Queued,
    StoreMisconfigured,
    TooLarge,
)
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import completion, updates
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, digest
from airflow_checkpoint_provider.protocol.records import canonical, checked, parse
from airflow_checkpoint_provider.protocol.state import LARGEST_LIST
from airflow_checkpoint_provider.storage import MemoryStore, base
from tests.support.acknowledgements import acknowledgement, bystander, driver, file_set, stage, take, value
from tests.support.causes import cause_of
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.garbage import retire
from tests.support.histories import launch
from tests.support.journals import KEYS

SEAL = KEYS.seal(1)
ACK = KEYS.acknowledgement(1, "")


pytestmark = pytest.mark.usefixtures("virtual_time")


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


def test_repeated_request_returns_its_checkpoint() -> None:
    store = MemoryStore()
    coordinator = driver(store)
    assert coordinator.trigger(Request(token="one", timeout_s=600.0)) == 1
    assert coordinator.trigger(Request(token="one", timeout_s=600.0)) == 1
    assert bystander(store).trigger(Request(token="one", timeout_s=600.0)) == 1


def test_second_acknowledgement_returns_the_first() -> None:
    """B8: the second process goes on with the file sets of the first."""
    store = MemoryStore()
    coordinator, other = triggered(store), bystander(store)
    first = acknowledgement(1, stage("clean", 1, made_of=file_set("clean", nonce="theirs")), nonce="theirs")
    second = acknowledgement(1, stage("clean", 1, made_of=file_set("clean", nonce="ours")))
    assert other.acknowledge(first) == first
    assert coordinator.acknowledge(second) == first
    coordinator.complete(1)
    (sealed_state,) = coordinator.read_seal(only(coordinator)).states.values()
    assert sealed_state.file_sets[0].path == "state/clean/1-theirs"
    assert [known.path for known in coordinator.state.file_sets] == ["state/clean/1-theirs"]


def test_acknowledgement_from_outside_the_plan_is_refused() -> None:
    store = MemoryStore()
    coordinator = triggered(store)
    before = dict(store.objects)
    with pytest.raises(NotPending, match="chk-1 does not wait for application 'other'; nothing was written"):
        coordinator.acknowledge(replace(acknowledgement(1, stage("clean", 1)), application="other"))
    assert store.objects == before


def test_acknowledgement_without_an_answer_is_unknown() -> None:
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
def test_acknowledgement_of_another_incarnation_is_refused(act: Callable[[Coordinator], object]) -> None:
    """A user deleted the journal by hand and left the checkpoints, whose rows belong to the old history."""
    store = MemoryStore()
    coordinator = triggered(store)
    store.create(ACK, acknowledgement(1, stage("clean", 1), inc="an0ther").to_bytes())
    with pytest.raises(OtherIncarnation, match=r"delete .*chk-1"):
        act(coordinator)
    assert SEAL not in store.objects


# -- seal and entry ------------------------------------------------------------------------------------------------------


def test_acknowledgement_of_a_deleted_part_of_the_journal_does_not_count() -> None:
    """Of the entries of chk-2 and chk-3 a person has no backup and deletes what is left, but not the folders. The retry takes chk-2 again."""
    store = MemoryStore()
    first = driver(store)
    take(first)
    n = first.state.n
    for _ in range(2):
        take(first)
    torn = sorted(key for key in store.objects if key > first.keys.entry(n) and key.startswith(first.keys.journal))
    del store.objects[torn[0]]
    with pytest.raises(Damaged, match=r"delete the later entries, and .*/chk-2 and each checkpoint after it"):
        bystander(store)
    store.delete(torn)
    retry = driver(store, try_number=2)
    with pytest.raises(
        Damaged,
        match=r"chk-2 waits for attempt 2, and attempt 1 has acknowledged it, .* delete .*/chk-2 and those after it",
    ):
        take(retry)
    assert [checkpoint.id for checkpoint in retry.state.retained] == [1]


def test_entry_has_the_digest_of_a_seal_with_every_state() -> None:
    """P4."""
    store = MemoryStore()
    coordinator = sealed(store)
    found = only(coordinator)
    assert (found.status, found.digest) == (RETAINED, digest(store.objects[SEAL]))
    seal = coordinator.read_seal(found)
    assert sorted(seal.states) == ["clean", "count"]
    assert seal.applications[""] == Acknowledgement.from_bytes(store.objects[ACK])
    assert [(state.uid, state.new, state.bytes) for state in found.states] == [("clean", True, 38), ("count", True, 0)]


def test_all_coordinators_build_the_same_seal() -> None:
    """A seal depends only on the entry of the trigger and on the acknowledgements."""
    seals = set()
    for finish in (lambda coordinator, store: coordinator, lambda coordinator, store: bystander(store)):
        store = MemoryStore()
        finish(acknowledged(store), store).complete(1)
        seals.add(store.objects[SEAL])
    assert len(seals) == 1


def test_second_completion_is_done_already() -> None:
    store = MemoryStore()
    coordinator, other = sealed(store), bystander(store)
    for process in (coordinator, other):
        assert process.complete(1).done == c.DoneAlready(1)


def test_seal_without_its_entry_is_completed_by_any_process() -> None:
    """B9: the coordinator died between seal and entry; the digest is that of the stored seal."""
    store = MemoryStore()
    acknowledged(store)
    copy = MemoryStore()
    copy.objects = dict(store.objects)
    bystander(copy).complete(1)
    store.create(SEAL, copy.objects[SEAL])
    bystander(store).complete(1)
    assert only(bystander(store)).digest == digest(copy.objects[SEAL])


def test_digest_is_that_of_the_stored_seal() -> None:
    """B9: a newer version sealed the same acknowledgements with an additional field."""
    store = MemoryStore()
    acknowledged(store)
    copy = MemoryStore()
    copy.objects = dict(store.objects)
    bystander(copy).complete(1)
    store.create(SEAL, checked(parse(copy.objects[SEAL], SEAL) | {"later": "kept"}))
    coordinator = bystander(store)
    coordinator.complete(1)
    assert only(coordinator).digest == digest(store.objects[SEAL])
    assert coordinator.read_seal(only(coordinator)).extra == {"later": "kept"}


def test_checkpoint_is_not_sealed_before_all_acknowledgements() -> None:
    """B10: a seal is written once; an early seal would lack states for good."""
    store = MemoryStore()
    coordinator = triggered(store)
    with pytest.raises(NotPending, match="not acknowledged"):
        bystander(store).complete(1)
    assert SEAL not in store.objects
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    bystander(store).complete(1)
    assert sorted(coordinator.read_seal(only(coordinator)).states) == ["clean"]


def test_attempt_cannot_acknowledge_a_checkpoint_of_its_successor() -> None:
    """P3, P4: a replaced attempt sees a pending checkpoint of its successor; its acknowledgement would count for the successor."""
    store = MemoryStore()
    zombie, successor = driver(store), driver(store, 2)
    number = successor.trigger(Request(token="stage 'clean'", timeout_s=600.0))
    zombie.journal.catch_up()
    with pytest.raises(Fenced, match="waits for attempt 2"):
        zombie.acknowledge(acknowledgement(number, stage("clean", number), epoch=1))
    assert ACK not in store.objects


def test_aborted_checkpoint_is_not_completed_by_a_late_acknowledgement() -> None:
    store = MemoryStore()
    coordinator = triggered(store)
    bystander(store).abort(1, "expired")
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    with pytest.raises(NotPending, match="expired"):
        coordinator.complete(1)
    assert only(coordinator).status == ABORTED


def test_completion_of_a_deleted_checkpoint_is_done_already() -> None:
    """P11: the completion is repeated long after the deletion."""
    store = MemoryStore()
    coordinator = driver(store)
    for _ in range(3):
        take(coordinator)
    assert retire(coordinator) == (1,)
    assert coordinator.complete(1).done == c.DoneAlready(1)
    assert SEAL not in store.objects


def test_completion_of_an_unknown_checkpoint_is_refused() -> None:
    with pytest.raises(CheckpointNotFound, match="chk-9"):
        driver(MemoryStore()).complete(9)


def earlier(store: MemoryStore) -> bytes:
    """Return a seal of the same checkpoint with other rows."""
    seal = Seal(
        inc="1ncarnation", job="flights.delays", scope="", item=None, id=1, kind="checkpoint", branch=0, epochs=(1,), plan=("",),
        applications={"": acknowledgement(1, stage("clean", 1, made_of=file_set("clean", nonce="other")), nonce="other")},
    )  # fmt: skip
    return seal.to_bytes()


@pytest.mark.parametrize(
    "body",
    [lambda store: b"", lambda store: b'{"v":1', lambda store: canonical({"v": 1}), earlier],
    ids=["empty", "torn", "not a seal", "another seal"],
)
def test_checkpoint_with_a_wrong_seal_stays_pending(body: Callable[[MemoryStore], bytes]) -> None:
    """P4: the pending checkpoint can be aborted."""
    store = MemoryStore()
    coordinator = acknowledged(store)
    store.create(SEAL, body(store))
    with pytest.raises(Damaged):
        coordinator.complete(1)
    assert only(coordinator).status == PENDING
    coordinator.abort(1, "store failed", phase="seal")
    assert only(coordinator).status == ABORTED


def test_damaged_acknowledgement_raises_damaged() -> None:
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
def test_changed_seal_of_a_completed_checkpoint_is_damaged(
    hurt: Callable[[dict[str, bytes]], object], says: str
) -> None:
    store = MemoryStore()
    coordinator = sealed(store)
    hurt(store.objects)
    with pytest.raises(Damaged, match=says):
        coordinator.read_seal(only(coordinator))


def test_lost_answer_to_the_seal_is_settled() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = acknowledged(store)
    store.plan = lambda call: Fault.LOST if call.kind == "create" and call.key == SEAL else Fault.NONE
    assert coordinator.complete(1).done is None
    assert only(coordinator).status == RETAINED


def silent(call: Call) -> Fault:
    return Fault.DROPPED if call.kind == "create" and call.key == SEAL else Fault.NONE


def test_seal_without_an_answer_is_unknown_and_the_checkpoint_stays_pending() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = acknowledged(store)
    store.plan = silent
    with pytest.raises(CommitStateUnknown, match="chk-1"):
        coordinator.complete(1)
    assert only(coordinator).status == PENDING
    store.plan = lambda call: Fault.NONE
    coordinator.complete(1)
    assert only(coordinator).status == RETAINED


def test_checkpoint_too_large_for_an_entry_is_aborted() -> None:
    """A pending checkpoint would delay every later one."""
    store = MemoryStore()
    coordinator = triggered(store)
    many = (stage(f"state-{n:04d}", 1) for n in range(1200))
    coordinator.acknowledge(acknowledgement(1, *many))
    with pytest.raises(TooLarge):
        coordinator.complete(1)
    found = only(coordinator)
    assert (found.status, found.reason) == (ABORTED, "too large")


@pytest.mark.parametrize(("limit", "phase"), [(2000, "acknowledge"), (2200, "seal")])
def test_checkpoint_too_large_for_a_reader_is_aborted(limit: int, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    coordinator = triggered(store)
    monkeypatch.setattr(base, "LARGEST", limit)

    def take_it() -> None:
        coordinator.acknowledge(acknowledgement(1, *(stage(f"state-{n:04d}", 1) for n in range(3))))
        coordinator.complete(1)

    with pytest.raises(TooLarge, match=f"more than the {limit} that are read"):
        take_it()
    found = only(coordinator)
    assert (found.status, found.reason, cause_of(found).phase) == (ABORTED, "too large", phase)


def test_checkpoint_is_aborted_while_the_list_of_all_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no entry could hold the snapshot of the next boundary, and nobody could write into the journal any more."""
    monkeypatch.setattr(completion, "LARGEST_LIST", 8000)
    monkeypatch.setattr(updates, "KEPT_RECORDS", 2)  # of those that are over
    coordinator = driver(MemoryStore(), retention=KeepAll())
    with pytest.raises(TooLarge, match=r"more than 8000: \d+ are retained, 0 of them savepoints.* Lower `retention`"):
        all(take(coordinator) for _ in range(20))
    *kept, aborted = coordinator.state.checkpoints
    assert (aborted.status, aborted.reason, cause_of(aborted).phase) == (ABORTED, "too large", "complete")
    coordinator.journal.append(c.EndAttempt(epoch=1, outcome="failed"))
    successor = driver(coordinator.store, 2, retention=KeepLatest(1))
    assert len(retire(successor)) == len(kept) - 1
    assert take(successor) == aborted.id + 1


def test_length_of_the_list_is_most_of_a_snapshot() -> None:
    coordinator = driver(MemoryStore(), retention=KeepAll())
    empty = len(coordinator.state.encoded)
    assert coordinator.state.list_bytes == 0
    for _ in range(20):
        take(coordinator)
    grown = len(coordinator.state.encoded) - empty
    assert grown * 0.95 < coordinator.state.list_bytes < grown * 1.05
    assert LARGEST_LIST * 2 == base.LARGEST


def test_state_entries_mark_new_and_reused_states() -> None:
    seal = Seal(
        inc="i", job="j", scope="", item=None, id=2, kind="checkpoint", branch=0, epochs=(1,), plan=("",),
        applications={"": acknowledgement(2, stage("joined", 2), stage("clean", 1))},
    )  # fmt: skip
    assert [(state.uid, state.new) for state in state_entries(seal)] == [("clean", False), ("joined", True)]


def test_state_entries_mark_stages_that_the_script_did_not_use() -> None:
    ack = replace(acknowledgement(2, stage("joined", 2), stage("clean", 1)), unused=("clean",))
    seal = Seal(
        inc="i", job="j", scope="", item=None, id=2, kind="checkpoint", branch=0, epochs=(1,), plan=("",), applications={"": ack}
    )  # fmt: skip
    assert [(state.uid, state.unused) for state in state_entries(seal)] == [("clean", True), ("joined", False)]


def test_checkpoints_that_hand_on_a_state_share_its_entry() -> None:
    """A history keeps a thousand checkpoints of a hundred states each."""
    coordinator = driver(MemoryStore())
    handed_on = stage("clean", 0, made_of=file_set("clean", nonce="earlier"))
    for _ in range(2):
        take(coordinator, handed_on)
    first, second = coordinator.state.retained
    assert first.states[0].uid == "clean"
    assert first.states[0] is second.states[0]
    assert first.file_sets[0] == second.file_sets[0]


def test_state_that_nobody_could_read_is_not_acknowledged() -> None:
    store = MemoryStore()
    coordinator = triggered(store)
    with pytest.raises(Damaged, match="-1 is not a valid size"):
        coordinator.acknowledge(acknowledgement(1, stage("clean", -1)))
    assert ACK not in store.objects


# -- before an effect ----------------------------------------------------------------------------------------------------


def test_replaced_attempt_is_fenced_before_its_next_effect() -> None:
    store = MemoryStore()
    coordinator, other = driver(store), bystander(store)
    coordinator.check_not_fenced()
    other.journal.append(launch(try_number=2))
    with pytest.raises(Fenced) as caught:
        coordinator.check_not_fenced()
    assert caught.value.about["epoch"] == 1
    other.check_not_fenced()


def test_commands_of_a_replaced_attempt_change_nothing() -> None:
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


def test_queued_request_polls_with_one_read() -> None:
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


def test_savepoint_without_a_valid_target_is_refused() -> None:
    coordinator = driver(MemoryStore())
    with pytest.raises(InvalidConfig, match="needs target="):
        coordinator.trigger(Request(token="a", origin="task", kind="savepoint"))
    with pytest.raises(StoreMisconfigured):
        coordinator.trigger(Request(token="a", origin="task", kind="savepoint", folder="ftp://somewhere"))
    assert not coordinator.state.pending
