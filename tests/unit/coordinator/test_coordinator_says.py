"""What a coordinator is asked for stands in the entry that it writes, word for word. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.errors import Fenced, InvalidConfig, NotRunning
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import Measures
from airflow_checkpoint_provider.protocol.state import CONDEMNED
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import acknowledgement, driver, stage, take, upload
from tests.support.histories import at
from tests.support.saved import memory


def test_a_request() -> None:
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


def test_a_gated_request() -> None:
    coordinator = driver(MemoryStore())
    coordinator.trigger(Request(token="audited", gated=True))
    (found,) = coordinator.state.pending
    assert (found.request.gated, found.kind, found.target) == (True, "checkpoint", None)


def test_a_request_of_another_run_is_not_this_attempts() -> None:
    with pytest.raises(NotRunning):
        driver(MemoryStore()).trigger(Request(token="asked"), run="day-2")


@pytest.mark.parametrize("name", ["two\nlines", "a\ttab"])
def test_a_name_stands_in_one_line(name: str) -> None:
    with pytest.raises(InvalidConfig, match="write it in one line"):
        driver(MemoryStore()).trigger(Request(token="asked", name=name))


def test_an_abort() -> None:
    coordinator = driver(MemoryStore())
    number = coordinator.trigger(Request(token="asked"))
    coordinator.abort(number, "declined", phase="seal", missing=("",), details="out of memory")
    (found,) = coordinator.state.checkpoints
    assert (found.reason, found.phase, found.missing, found.details) == ("declined", "seal", ("",), "out of memory")


def forget(zombie: Coordinator, number: int) -> None:
    """What it began to delete while it was the one."""
    garbage.forget(zombie, garbage.Deleted(garbage.Expired(ids=(1,)), ()))


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(lambda zombie, number: zombie.abort(number, "expired"), id="abort"),
        pytest.param(lambda zombie, number: zombie.complete(number), id="complete, before it is acknowledged"),
        pytest.param(forget, id="forget"),
    ],
)
def test_an_attempt_that_is_over_hears_that_first(late: Callable[[Coordinator, int], object]) -> None:
    """Whatever else might be said of its command: it ends then (P3)."""
    store = MemoryStore()
    zombie = driver(store, retention=KeepLatest(1))
    take(zombie), take(zombie)
    garbage.condemn(zombie, at(1))
    successor = driver(store, 2)
    number = successor.trigger(Request(token="asked"))
    with pytest.raises(Fenced):
        late(zombie, number)
    state = successor.journal.catch_up()
    assert [one.id for one in state.pending] == [number]
    assert [one.id for one in state.with_status(CONDEMNED)] == [1]


def test_a_completion_says_of_each_state_what_it_is() -> None:
    coordinator = driver(MemoryStore())
    take(coordinator)
    (state,) = coordinator.state.retained[0].states
    assert (state.uid, state.kind, state.run, state.new) == ("s1", "stage", "day-1", True)
    made_of = stage("s1", 1).file_sets[0]
    assert (state.bytes, state.rows) == (made_of.bytes, made_of.rows)
    assert state.measures == stage("s1", 1).measures != Measures()


def test_states_stand_in_the_order_of_their_uids() -> None:
    coordinator = driver(MemoryStore())
    number = coordinator.trigger(Request(token="asked"))
    states = [stage(uid, number) for uid in ("b", "c", "a")]
    upload(coordinator.store, coordinator, [file_set for one in states for file_set in one.file_sets])
    coordinator.acknowledge(acknowledgement(number, *states))
    coordinator.complete(number)
    (found,) = coordinator.state.retained
    assert [one.uid for one in found.states] == ["a", "b", "c"]
    assert found.bytes == sum(file_set.bytes for one in states for file_set in one.file_sets)
