"""Resolving and verifying a restore point: denied, absent and damaged are three errors (docs/inside/state-machine.md). Runs anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.restore import (
    Restored,
    examine,
    locate_checkpoint,
    resolve,
    verified,
)
from airflow_checkpoint_provider.coordinator.restore_target import RestoreTarget
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    CheckpointNotFound,
    Damaged,
    InvalidName,
    RenameConflict,
    StateNotFound,
    StoreDenied,
    StoreUnavailable,
)
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import MemoryStore, open_store
from tests.support.acknowledgements import acknowledgement, bystander, driver, take, value
from tests.support.faults import Fault, FaultyStore
from tests.support.garbage import retire
from tests.support.histories import launch, token
from tests.support.journals import KEYS, open_journal

_names = itertools.count()
SECOND = KEYS.file_set("state/s2/1-n0nce/part-00000.zstd.parquet")


@pytest.fixture
def store() -> MemoryStore:
    """Return a store that pointers can name."""
    opened = open_store(f"memory://restoring-{next(_names)}")
    assert isinstance(opened, MemoryStore)
    return opened


def three(store: MemoryStore | FaultyStore) -> Coordinator:
    coordinator = driver(store, retention=KeepAll())
    for _ in range(3):
        take(coordinator)
    return coordinator


def of_two(store: MemoryStore) -> Coordinator:
    """Complete a checkpoint with the states ``a`` and ``b``."""
    coordinator = driver(store)
    number = coordinator.trigger(Request(token="one", timeout_s=600.0))
    coordinator.acknowledge(acknowledgement(number, value("a", number, 1), value("b", number, 2)))
    coordinator.complete(number)
    return coordinator


def verdicts(restored: Restored) -> list[tuple[int, str, str, int | None]]:
    return [(found.checkpoint.id, found.verdict, found.why, found.files) for found in restored.candidates]


def newest(coordinator: Coordinator) -> Restored:
    state = coordinator.journal.catch_up()
    return examine(coordinator, state, state.restore_point())


# -- verdicts ------------------------------------------------------------------------------------------------------------


def test_examine_without_a_history_returns_nothing(store: MemoryStore) -> None:
    coordinator = Coordinator(open_journal(store))
    assert newest(coordinator) == Restored()


def test_unsealed_checkpoints_are_rejected(store: MemoryStore) -> None:
    coordinator = driver(store)
    coordinator.abort(coordinator.trigger(Request(token="one", timeout_s=600.0)), "expired")
    coordinator.trigger(Request(token="two", timeout_s=600.0))
    restored = newest(coordinator)
    assert (restored.point, restored.seal) == (None, None)
    assert verdicts(restored) == [(2, "rejected", "never sealed", 0), (1, "rejected", "never sealed", 0)]


def test_candidates_are_listed_newest_first_with_verdicts(store: MemoryStore) -> None:
    """An unsealed checkpoint is listed as rejected."""
    coordinator = three(store)
    coordinator.trigger(Request(token="four", timeout_s=600.0))
    restored = newest(coordinator)
    assert verdicts(restored) == [
        (4, "rejected", "never sealed", 0),
        (3, "chosen", "", 2),
        (2, "older", "", 0),
        (1, "older", "", 0),
    ]
    assert restored.point == Point(id=3)
    assert restored.seal
    assert sorted(restored.seal.states) == ["s3"]
    assert (restored.store, restored.keys) == (coordinator.store, coordinator.keys)


def test_files_of_all_states_are_counted(store: MemoryStore) -> None:
    coordinator = driver(store)
    take(coordinator)
    first = coordinator.read_seal(coordinator.state.retained[0]).states["s1"]
    take(coordinator, first)
    assert verdicts(newest(coordinator))[0] == (2, "chosen", "", 4)


def test_base_of_a_branch_is_chosen(store: MemoryStore) -> None:
    coordinator = three(store)
    restored = examine(coordinator, coordinator.state, Point(id=1))
    assert verdicts(restored) == [(1, "chosen", "", 2)]


def test_checkpoint_of_another_history_is_read_in_its_store(store: MemoryStore) -> None:
    three(store)
    reader = Coordinator(open_journal(MemoryStore()))
    pointer = f"{store.uri}/{KEYS.prefix}/chk-2"
    restored = examine(reader, reader.state, Point(pointer=pointer), told=pointer)
    assert verdicts(restored) == [(2, "chosen", "named by restore=", 2)]
    assert restored.store is store
    assert restored.keys == KEYS


# -- damage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hurt", "says"),
    [
        pytest.param(lambda objects: objects.pop(SECOND), "part-00000.zstd.parquet is missing", id="a file is missing"),
        pytest.param(
            lambda objects: objects.update({SECOND: b"short"}),
            "has 5 bytes, 19 were acknowledged",
            id="a file is shorter",
        ),
        pytest.param(lambda objects: objects.update({SECOND: b""}), "has 0 bytes", id="a file is empty"),
        pytest.param(
            lambda objects: objects.update({SECOND.replace("/part-", "/_temporary/part-"): objects.pop(SECOND)}),
            "is missing",
            id="a file of its name lies deeper",
        ),
        pytest.param(lambda objects: objects.pop(KEYS.seal(2)), "_metadata is missing", id="the seal is missing"),
        pytest.param(
            lambda objects: objects.update({KEYS.seal(2): b"{}"}),
            "is not what the journal says",
            id="the seal is another",
        ),
        pytest.param(
            lambda objects: objects.update({KEYS.seal(2): objects[KEYS.seal(3)]}),
            "is not what the journal says",
            id="the seal is another checkpoint's",
        ),
    ],
)
def test_damaged_checkpoint_names_the_file_and_the_next_older_one(
    store: MemoryStore, hurt: Callable[[dict[str, bytes]], object], says: str
) -> None:
    """A damaged checkpoint is never skipped: the next older one would be a guess."""
    coordinator = three(store)
    hurt(store.objects)
    with pytest.raises(Damaged, match=says) as caught:
        examine(coordinator, coordinator.state, Point(id=2))
    assert caught.value.message.startswith("chk-2 cannot be restored: ")
    assert "chk-1 is the next older one that is whole. Nothing was changed." in caught.value.message
    pointer = Pointer(store.uri, KEYS.prefix, 2)
    with pytest.raises(Damaged, match="chk-1 is the next older one"):
        verified(*locate_checkpoint(pointer, store))


def test_damaged_checkpoint_without_an_older_one_says_so(store: MemoryStore) -> None:
    coordinator = driver(store)
    take(coordinator)
    del store.objects[KEYS.seal(1)]
    with pytest.raises(Damaged, match="there is no other one that is whole"):
        newest(coordinator)


def test_damaged_checkpoint_does_not_name_an_older_one_with_the_same_damage(store: MemoryStore) -> None:
    coordinator = driver(store, retention=KeepAll())
    take(coordinator)
    take(coordinator)
    second = coordinator.read_seal(coordinator.state.retained[-1]).states["s2"]
    for _ in range(2):
        take(coordinator, second)
    del store.objects[SECOND]
    with pytest.raises(Damaged, match=r"chk-4 cannot be restored: state 's2': .*chk-1 is the next .*--from chk-1"):
        newest(coordinator)


def test_unacknowledged_file_is_ignored(store: MemoryStore) -> None:
    """Trap 10: speculative tasks leave files; only acknowledged files count."""
    coordinator = three(store)
    store.objects[SECOND.replace("part-00000", "part-00099")] = b"of a task that was killed"
    restored = examine(coordinator, coordinator.state, Point(id=2))
    assert verdicts(restored) == [(2, "chosen", "", 2), (1, "older", "", 0)]


def test_forgotten_checkpoint_is_not_restored(store: MemoryStore) -> None:
    coordinator = driver(store)
    for _ in range(3):
        take(coordinator)
    retire(coordinator)
    with pytest.raises(Damaged, match="chk-1"):
        examine(coordinator, coordinator.state, Point(id=1))


@pytest.mark.parametrize("kind", ["read", "list"])
@pytest.mark.parametrize(("fault", "error"), [(Fault.DENIED, StoreDenied), (Fault.NOT_SENT, StoreUnavailable)])
def test_error_of_the_store_is_not_taken_for_absent(
    store: MemoryStore, kind: str, fault: Fault, error: type[Exception]
) -> None:
    """Trap 6."""
    three(store)
    faulty = FaultyStore(store)
    reader = bystander(faulty)
    faulty.plan = lambda call: fault if call.kind == kind else Fault.NONE
    with pytest.raises(error):
        examine(reader, reader.state, Point(id=3))
    faulty.plan = lambda call: fault
    with pytest.raises(error):
        open_journal(faulty).catch_up()


def test_verification_costs_one_list_per_file_set_and_one_read(store: MemoryStore) -> None:
    three(store)
    faulty = FaultyStore(store)
    reader = bystander(faulty)
    faulty.requests.clear()
    examine(reader, reader.state, Point(id=3))
    assert faulty.requests == {"read": 1, "list": 1}


# -- restore= ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restore", ["latest", "none"])
def test_latest_and_none_resolve_to_no_point(store: MemoryStore, restore: str) -> None:
    assert resolve(restore, three(store).state, store) is None


@pytest.mark.parametrize("restore", ["2", "chk-2", "<pointer>", "<pointer>/"])
def test_checkpoint_of_this_history_resolves_to_an_id(store: MemoryStore, restore: str) -> None:
    """A pointer to the own history becomes an id too: only an id holds its file sets (P9)."""
    coordinator = three(store)
    written = restore.replace("<pointer>", f"{store.uri}/{KEYS.prefix}/chk-2")
    assert resolve(written, coordinator.state, store) == Point(id=2)


def test_checkpoint_of_another_history_resolves_to_a_pointer(store: MemoryStore) -> None:
    three(store)
    pointer = f"{store.uri}/{KEYS.prefix}/chk-2"
    assert resolve(pointer, State(), open_store("memory://elsewhere")) == Point(pointer=pointer)
    other = State(job="flights.delays", scope="day-1", n=3)
    assert resolve(pointer, other, store) == Point(pointer=pointer)
    same_key_elsewhere = State(job="flights.delays", n=3)
    assert resolve(pointer, same_key_elsewhere, open_store("memory://elsewhere")) == Point(pointer=pointer)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (1, "deleted by its retention policy; retention=KeepWithin"),
        (4, r"aborted \(expired\)"),
        (5, "not completed yet"),
        (9, "never made, or no longer lists"),
    ],
)
@pytest.mark.parametrize(
    ("form", "here"),
    [("{id}", True), ("chk-{id}", True), ("{uri}/{prefix}/chk-{id}", True), ("{uri}/{prefix}/chk-{id}", False)],
    ids=["a number", "an id", "a pointer", "another history's pointer"],
)
def test_absent_checkpoint_is_refused_with_the_cause(
    store: MemoryStore, number: int, says: str, form: str, here: bool
) -> None:
    coordinator = driver(store)
    for _ in range(3):
        take(coordinator)
    retire(coordinator)
    coordinator.abort(coordinator.trigger(Request(token="four", timeout_s=600.0)), "expired")
    coordinator.trigger(Request(token="five", timeout_s=600.0))
    restore = form.format(id=number, uri=store.uri, prefix=KEYS.prefix)
    with pytest.raises(CheckpointNotFound, match=says) as caught:
        resolve(restore, coordinator.state if here else State(), store)
    assert caught.value.permanent


def test_checkpoint_deleted_with_its_run_is_refused_with_the_time(store: MemoryStore) -> None:
    coordinator = driver(store, scope="day-1")
    take(coordinator)
    coordinator.journal.append(c.EndAttempt(epoch=1, outcome="finished"))
    task = bystander(store)
    assert retire(task) == (1,)
    with pytest.raises(CheckpointNotFound, match=r"deleted with its run, which ended at 2026-11-20T00:01:00"):
        resolve(f"{store.uri}/{KEYS.prefix}/chk-1", State(), open_store("memory://elsewhere"))


def test_pointer_to_an_absent_history_is_not_found(store: MemoryStore) -> None:
    with pytest.raises(CheckpointNotFound, match="there is no history at jobs/orders/job"):
        resolve(f"{store.uri}/jobs/orders/job/chk-1", State(), store)
    assert store.objects == {}


@pytest.mark.parametrize("restore", ["", "newest", "chk-", "chk--1", "-1", "1.5", "\N{SUPERSCRIPT TWO}", "/tmp"])
def test_invalid_restore_value_is_refused(store: MemoryStore, restore: str) -> None:
    with pytest.raises(InvalidName, match=r'write "latest", "none" .by hand also "run-start"., the id') as caught:
        resolve(restore, three(store).state, store)
    assert caught.value.permanent


# -- restore with renamed states -----------------------------------------------------------------------------------------


def go_back(coordinator: Coordinator, where: str, rename: dict[str, str], generation: int) -> None:
    going = RestoreTarget(coordinator, where, coordinator.state.runs[-1].key)

    def command(state: State) -> c.Restore:
        base = going.verify(state)
        asks = token(task="restore", generation=generation)
        return c.Restore(token=asks, base=base, by="ann", reason="", rename=going.names(rename))

    coordinator.journal.append(command)


FIRST = ("chk-1", {"a": "c"})


@pytest.mark.parametrize(
    ("rule", "steps", "names"),
    [
        ("as they were called", [("chk-1", {})], {}),
        ("one", [FIRST], {"a": "c"}),
        ("what is named by its id has its own names", [FIRST, ("chk-1", {})], {}),
        ("also where that was one already", [FIRST, ("chk-1", {"b": "c"})], {"b": "c"}),
        ("the same again", [("chk-1", {"a": "b", "b": "a"})] * 2, {"a": "b", "b": "a"}),
        ("the newest keeps those that were given", [FIRST, ("latest", {})], {"a": "c"}),
        ("and gets others besides", [FIRST, ("latest", {"b": "d"})], {"a": "c", "b": "d"}),
        ("or anew", [FIRST, ("latest", {"a": "d"})], {"a": "d"}),
        ("so does the start of a run", [FIRST, "launch", ("none", {}), ("run-start", {})], {"a": "c"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_renames_are_combined_by_situation(
    store: MemoryStore, rule: str, steps: list[Any], names: dict[str, str]
) -> None:
    coordinator = of_two(store)
    for generation, step in enumerate(steps):
        if step == "launch":
            coordinator.journal.append(launch("day-2"))
        else:
            where, rename = step
            go_back(coordinator, where, rename, generation)
    assert coordinator.state.branch.rename == names


@pytest.mark.parametrize(
    ("rule", "rename", "error"),
    [
        ("two to one, of which one was given before", {"b": "c"}, RenameConflict),
        ("by the name that was given before", {"c": "d"}, StateNotFound),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_conflicting_renames_are_refused(
    store: MemoryStore, rule: str, rename: dict[str, str], error: type[CheckpointError]
) -> None:
    coordinator = of_two(store)
    go_back(coordinator, *FIRST, 0)
    with pytest.raises(error):
        go_back(coordinator, "latest", rename, 1)
    assert coordinator.state.branch.rename == {"a": "c"}
