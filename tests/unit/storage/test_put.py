"""``put`` with retries: its outcome after each fault of a request. Runs anywhere."""

from __future__ import annotations

import logging

import pytest

from airflow_checkpoint_provider.errors import InvalidName, StoreDenied, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.storage import MemoryStore, Put
from airflow_checkpoint_provider.storage.base import LONGEST_WAIT, put
from tests.support.faults import Call, Fault, FaultyStore, Killed, Time, always, nth

KEY = "journal/1"
OURS, THEIRS = b'{"nonce":"ours"}', b'{"nonce":"theirs"}'


pytestmark = pytest.mark.usefixtures("virtual_time")


def test_answered_put_costs_one_request() -> None:
    store = FaultyStore(MemoryStore())
    assert put(store, KEY, OURS) == (Put.STORED, OURS)
    assert store.requests == {"create": 1}


def test_put_of_a_taken_key_returns_the_stored_bytes() -> None:
    store = FaultyStore(MemoryStore())
    store.inner.create(KEY, THEIRS)
    assert put(store, KEY, OURS) == (Put.EXISTS, THEIRS)
    assert store.requests == {"create": 1, "read": 1}


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        ({1: Fault.LOST}, {"create": 1, "read": 1}),
        ({1: Fault.TWICE}, {"create": 1, "read": 1}),
        ({1: Fault.DROPPED}, {"create": 2, "read": 1}),
        ({1: Fault.NOT_SENT}, {"create": 2}),
        ({1: Fault.NOT_SENT, 2: Fault.LOST}, {"create": 2, "read": 1}),
        ({1: Fault.DROPPED, 2: Fault.TWICE}, {"create": 2, "read": 2}),
        ({1: Fault.DROPPED, 2: Fault.DENIED}, {"create": 3, "read": 1}),
        ({1: Fault.DROPPED, 2: Fault.MISCONFIGURED, 3: Fault.LOST}, {"create": 3, "read": 2}),
    ],
)
def test_own_put_is_recognized_after_any_fault(faults: dict[int, Fault], requests: dict[str, int]) -> None:
    store = FaultyStore(MemoryStore(), nth(faults))
    assert put(store, KEY, OURS) == (Put.STORED, OURS)
    assert store.inner.read(KEY) == OURS
    assert store.requests == requests


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.TWICE, Fault.DROPPED, Fault.NOT_SENT, Fault.LATE])
def test_foreign_put_is_recognized_after_any_fault(fault: Fault) -> None:
    store = FaultyStore(MemoryStore(), nth({1: fault}), late_by=1)
    store.inner.create(KEY, THEIRS)
    assert put(store, KEY, OURS) == (Put.EXISTS, THEIRS)


@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_late_put_is_stored_once(late_by: int) -> None:
    """The late request lands before the read, before the second put, or after it."""
    store = FaultyStore(MemoryStore(), nth({1: Fault.LATE}), late_by=late_by)
    assert put(store, KEY, OURS) == (Put.STORED, OURS)
    store.land()
    assert store.inner.read(KEY) == OURS


def test_put_that_lands_after_the_deadline_is_unknown() -> None:
    store = FaultyStore(MemoryStore(), always(Fault.LATE))
    assert put(store, KEY, OURS, patience=3) == (Put.UNKNOWN, None)
    assert store.inner.read(KEY) is None
    store.land()
    assert store.inner.read(KEY) == OURS


def test_put_succeeds_if_the_winner_was_deleted_before_the_read() -> None:
    """A compacted number: taken at the put, absent at the read, free at the second put."""
    store = FaultyStore(MemoryStore())
    store.inner.create(KEY, THEIRS)

    def pruned(call: Call) -> Fault:
        if call.kind == "read":
            store.inner.delete([KEY])
        return Fault.NONE

    store.plan = pruned
    assert put(store, KEY, OURS) == (Put.STORED, OURS)


@pytest.mark.parametrize("found", [Fault.NOT_SENT, Fault.DENIED, Fault.MISCONFIGURED])
def test_exists_is_unknown_until_the_key_was_read(found: Fault) -> None:
    store = FaultyStore(MemoryStore(), lambda call: Fault.TWICE if call.kind == "create" else found)
    assert put(store, KEY, OURS) == (Put.UNKNOWN, None)
    store.plan = nth({1: found, 2: found}, "read")
    assert put(store, KEY, OURS) == (Put.STORED, OURS)


@pytest.mark.parametrize(("fault", "error"), [(Fault.DENIED, StoreDenied), (Fault.MISCONFIGURED, StoreMisconfigured)])
def test_error_of_the_first_try_is_raised_at_once(fault: Fault, error: type[Exception]) -> None:
    store = FaultyStore(MemoryStore(), always(fault))
    with pytest.raises(error):
        put(store, KEY, OURS)
    assert store.requests == {"create": 1}


@pytest.mark.parametrize(("fault", "error"), [(Fault.DENIED, StoreDenied), (Fault.MISCONFIGURED, StoreMisconfigured)])
def test_error_after_unsent_tries_is_raised(fault: Fault, error: type[Exception]) -> None:
    store = FaultyStore(MemoryStore(), nth({1: Fault.NOT_SENT, 2: fault}))
    with pytest.raises(error):
        put(store, KEY, OURS)


def test_error_after_a_sent_try_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """A token can expire between two tries."""
    store = FaultyStore(MemoryStore(), lambda call: Fault.LATE if call.number == 1 else Fault.DENIED)
    with caplog.at_level(logging.WARNING):
        assert put(store, KEY, OURS) == (Put.UNKNOWN, None)
    assert "journal/1: after 30 s it is not known whether it was stored. denied, by plan" in caplog.text


def test_unsent_put_is_unavailable(virtual_time: Time) -> None:
    store = FaultyStore(MemoryStore(), always(Fault.NOT_SENT))
    with pytest.raises(StoreUnavailable):
        put(store, KEY, OURS, patience=7)
    assert virtual_time.now == pytest.approx(7)


def test_retries_wait_longer_until_the_patience_ends(virtual_time: Time) -> None:
    store = FaultyStore(MemoryStore(), always(Fault.DROPPED))
    assert put(store, KEY, OURS, patience=30) == (Put.UNKNOWN, None)
    assert virtual_time.now == pytest.approx(30)
    assert store.requests["create"] == store.requests["read"] == len(virtual_time.slept) + 1
    assert virtual_time.slept[0] <= 0.1
    assert 0.5 <= virtual_time.slept[4] <= max(virtual_time.slept) <= LONGEST_WAIT
    assert 15 <= len(virtual_time.slept) <= 40


def test_waits_of_two_writers_differ(virtual_time: Time) -> None:
    waits = []
    for _ in range(2):
        put(FaultyStore(MemoryStore(), nth({1: Fault.DROPPED, 2: Fault.DROPPED})), KEY, OURS)
        waits.append(virtual_time.slept[-2:])
    assert waits[0] != waits[1]


def test_zero_patience_makes_one_try(virtual_time: Time) -> None:
    store = FaultyStore(MemoryStore(), always(Fault.DROPPED))
    assert put(store, KEY, OURS, patience=0) == (Put.UNKNOWN, None)
    assert store.requests == {"create": 1, "read": 1}
    assert virtual_time.slept == []


def test_key_outside_the_root_is_refused_without_retries() -> None:
    with pytest.raises(InvalidName):
        put(MemoryStore(), "../x", OURS)


@pytest.mark.parametrize(("fault", "there"), [(Fault.KILLED_BEFORE, None), (Fault.KILLED_AFTER, OURS)])
def test_kill_is_not_caught(fault: Fault, there: bytes | None) -> None:
    store = FaultyStore(MemoryStore(), always(fault))
    with pytest.raises(Killed):
        put(store, KEY, OURS)
    assert store.inner.read(KEY) == there


def test_put_of_equal_bytes_is_stored() -> None:
    """A seal needs no nonce: every coordinator builds the same bytes."""
    store = MemoryStore()
    assert put(store, "chk-1/_metadata", b"seal") == put(store, "chk-1/_metadata", b"seal") == (Put.STORED, b"seal")
