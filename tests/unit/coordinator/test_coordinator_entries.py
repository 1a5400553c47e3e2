"""The entry that a coordinator writes holds every field of the request, abort or completion. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.errors import Fenced, InvalidConfig, NotRunning
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import Measures
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import acknowledgement, driver, stage, take, upload
from tests.support.causes import cause_of
from tests.support.histories import at
from tests.support.saved import memory


def test_entry_of_a_trigger_has_all_fields_of_the_request() -> None:
    coordinator, target = driver(MemoryStore()), memory().uri
    number = coordinator.trigger(
        Request(
            token="asked",
            try_number=3,
            timeout_s=60.0,
            barrier="stage 'clean'",
            origin="cli",
            kind="savepoint",
            folder=target,
            name="before the upgrade",
            pinned=True,
            owner="flights.save",
        ),
        run="day-1",
    )
    found = coordinator.state.checkpoint(number)
    assert found
    assert (found.request.token, found.request.try_number, found.timeout_s, found.request.barrier) == (
        "asked",
        3,
        60.0,
        "stage 'clean'",
    )
    assert (found.request.origin, found.kind, found.request.name, found.request.pinned) == (
        "cli",
        "savepoint",
        "before the upgrade",
        True,
    )
    assert (found.request.owner, found.request.gated, found.epochs) == ("flights.save", False, (1,))
    nonce = (found.target or "").rsplit("-", 1)[1]
    assert found.target == f"{target}/savepoint-flights.delays-{number}-{nonce}"
    assert 0 < len(nonce) <= 8


def test_entry_of_a_gated_trigger_is_gated() -> None:
    coordinator = driver(MemoryStore())
    coordinator.trigger(Request(token="audited", gated=True))
    (found,) = coordinator.state.pending
    assert (found.request.gated, found.kind, found.target) == (True, "checkpoint", None)


def test_request_for_another_run_is_refused() -> None:
    with pytest.raises(NotRunning):
        driver(MemoryStore()).trigger(Request(token="asked"), run="day-2")


@pytest.mark.parametrize("name", ["two\nlines", "a\ttab"])
def test_savepoint_name_with_line_break_or_tab_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="write it in one line"):
        driver(MemoryStore()).trigger(Request(token="asked", name=name))


def test_entry_of_an_abort_has_all_its_fields() -> None:
    coordinator = driver(MemoryStore())
    number = coordinator.trigger(Request(token="asked"))
    coordinator.abort(number, "declined", phase="seal", missing=("",), details="out of memory")
    (found,) = coordinator.state.checkpoints
    assert (found.reason, cause_of(found).phase, cause_of(found).missing, cause_of(found).details) == (
        "declined",
        "seal",
        ("",),
        "out of memory",
    )


def forget(zombie: Coordinator, number: int) -> None:
    """Forget a checkpoint whose deletion began before the attempt was replaced."""
    garbage.forget(zombie, garbage.Retired(ids=(1,)))


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(lambda zombie, number: zombie.abort(number, "expired"), id="abort"),
        pytest.param(lambda zombie, number: zombie.complete(number), id="complete, before it is acknowledged"),
        pytest.param(forget, id="forget"),
    ],
)
def test_replaced_attempt_is_fenced_before_any_other_error(late: Callable[[Coordinator, int], object]) -> None:
    """The attempt ends on *fenced*, whatever else is wrong with its command (P3)."""
    store = MemoryStore()
    zombie = driver(store, retention=KeepLatest(1))
    take(zombie), take(zombie)
    garbage.condemn(zombie, at(1))
    successor = driver(store, 2)
    number = successor.trigger(Request(token="asked"))
    with pytest.raises(Fenced):
        late(zombie, number)
    state = successor.journal.catch_up()
    assert [checkpoint.id for checkpoint in state.pending] == [number]
    assert [checkpoint.id for checkpoint in state.with_status(CONDEMNED)] == [1]


def test_entry_of_a_completion_describes_each_state() -> None:
    coordinator = driver(MemoryStore())
    take(coordinator)
    (state,) = coordinator.state.retained[0].states
    assert (state.uid, state.kind, state.run, state.new) == ("s1", "stage", "day-1", True)
    made_of = stage("s1", 1).file_sets[0]
    assert (state.bytes, state.rows) == (made_of.bytes, made_of.rows)
    assert state.measures == stage("s1", 1).measures != Measures()


def test_states_of_a_completion_are_sorted_by_uid() -> None:
    coordinator = driver(MemoryStore())
    number = coordinator.trigger(Request(token="asked"))
    states = [stage(uid, number) for uid in ("b", "c", "a")]
    upload(coordinator.store, coordinator, [file_set for state in states for file_set in state.file_sets])
    coordinator.acknowledge(acknowledgement(number, *states))
    coordinator.complete(number)
    (found,) = coordinator.state.retained
    assert [state.uid for state in found.states] == ["a", "b", "c"]
    assert found.bytes == sum(file_set.bytes for state in states for file_set in state.file_sets)
