"""The loop that puts: each way in which a request can be hurt, and what may be said of it afterwards. Runs anywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from airflow_checkpoint_provider.errors import InvalidName, StoreDenied, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.storage import MemoryStore, Put
from airflow_checkpoint_provider.storage.base import LONGEST_WAIT, put
from tests.support.faults import Call, Fault, FaultyStore, Killed, Time, nth, virtual_time

KEY = "journal/1"
OURS, THEIRS = b'{"nonce":"ours"}', b'{"nonce":"theirs"}'


@pytest.fixture(autouse=True)
def time() -> Iterator[Time]:
    with virtual_time() as time:
        yield time


def always(fault: Fault, kind: str = "create") -> Callable[[Call], Fault]:
    return lambda call: fault if call.kind == kind else Fault.NONE


def test_a_put_that_is_answered_costs_one_request() -> None:
    store = FaultyStore(MemoryStore())
    assert put(store, KEY, OURS) == (Put.STORED, OURS)
    assert store.requests == {"create": 1}


def test_another_ones_is_refused_and_shown() -> None:
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
def test_whatever_hurt_it_our_put_is_known_as_ours(faults: dict[int, Fault], requests: dict[str, int]) -> None:
    store = FaultyStore(MemoryStore(), nth(faults))
    assert put(store, KEY, OURS) == (Put.STORED, OURS)
    assert store.inner.read(KEY) == OURS
    assert store.requests == requests


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.TWICE, Fault.DROPPED, Fault.NOT_SENT, Fault.LATE])
def test_whatever_hurt_it_another_ones_is_known_as_another_ones(fault: Fault) -> None:
    store = FaultyStore(MemoryStore(), nth({1: fault}), late_by=1)
    store.inner.create(KEY, THEIRS)
    assert put(store, KEY, OURS) == (Put.EXISTS, THEIRS)


@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_absent_is_not_undone_while_a_request_may_land(late_by: int) -> None:
    """Landing before the read, before the second put, or after it: the same bytes, once."""
    store = FaultyStore(MemoryStore(), nth({1: Fault.LATE}), late_by=late_by)
    assert put(store, KEY, OURS) == (Put.STORED, OURS)
    store.land()
    assert store.inner.read(KEY) == OURS


def test_what_lands_after_the_deadline_was_called_unknown() -> None:
    store = FaultyStore(MemoryStore(), always(Fault.LATE))
    assert put(store, KEY, OURS, patience=3) == (Put.UNKNOWN, None)
    assert store.inner.read(KEY) is None
    store.land()
    assert store.inner.read(KEY) == OURS


def test_between_a_lost_race_and_the_look_at_the_winner_it_may_go() -> None:
    """A pruned number: there when we put, gone when we read, free when we put again."""
    store = FaultyStore(MemoryStore())
    store.inner.create(KEY, THEIRS)

    def pruned(call: Call) -> Fault:
        if call.kind == "read":
            store.inner.delete([KEY])
        return Fault.NONE

    store.plan = pruned
    assert put(store, KEY, OURS) == (Put.STORED, OURS)


@pytest.mark.parametrize("found", [Fault.NOT_SENT, Fault.DENIED, Fault.MISCONFIGURED])
def test_exists_is_not_refused_until_it_was_read(found: Fault) -> None:
    store = FaultyStore(MemoryStore(), lambda call: Fault.TWICE if call.kind == "create" else found)
    assert put(store, KEY, OURS) == (Put.UNKNOWN, None)
    store.plan = nth({1: found, 2: found}, "read")
    assert put(store, KEY, OURS) == (Put.STORED, OURS)


@pytest.mark.parametrize(("fault", "error"), [(Fault.DENIED, StoreDenied), (Fault.MISCONFIGURED, StoreMisconfigured)])
def test_a_refusal_of_the_first_try_is_raised_at_once(fault: Fault, error: type[Exception]) -> None:
    store = FaultyStore(MemoryStore(), always(fault))
    with pytest.raises(error):
        put(store, KEY, OURS)
    assert store.requests == {"create": 1}


@pytest.mark.parametrize(("fault", "error"), [(Fault.DENIED, StoreDenied), (Fault.MISCONFIGURED, StoreMisconfigured)])
def test_a_refusal_is_raised_after_tries_that_were_never_sent(fault: Fault, error: type[Exception]) -> None:
    store = FaultyStore(MemoryStore(), nth({1: Fault.NOT_SENT, 2: fault}))
    with pytest.raises(error):
        put(store, KEY, OURS)


def test_a_refusal_after_a_try_that_may_have_been_sent_leaves_it_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """A token can expire between two tries."""
    store = FaultyStore(MemoryStore(), lambda call: Fault.LATE if call.number == 1 else Fault.DENIED)
    with caplog.at_level(logging.WARNING):
        assert put(store, KEY, OURS) == (Put.UNKNOWN, None)
    assert "journal/1: after 30 s it is not known whether it was stored. denied, by plan" in caplog.text


def test_what_was_never_sent_is_unavailable_and_not_unknown(time: Time) -> None:
    store = FaultyStore(MemoryStore(), always(Fault.NOT_SENT))
    with pytest.raises(StoreUnavailable):
        put(store, KEY, OURS, patience=7)
    assert time.now == pytest.approx(7)


def test_patience_is_spent_with_growing_waits_and_a_last_try(time: Time) -> None:
    store = FaultyStore(MemoryStore(), always(Fault.DROPPED))
    assert put(store, KEY, OURS, patience=30) == (Put.UNKNOWN, None)
    assert time.now == pytest.approx(30)
    assert store.requests["create"] == store.requests["read"] == len(time.slept) + 1
    assert time.slept[0] <= 0.1
    assert 0.5 <= time.slept[4] <= max(time.slept) <= LONGEST_WAIT
    assert 15 <= len(time.slept) <= 40


def test_two_who_wait_do_not_wait_alike(time: Time) -> None:
    waits = []
    for _ in range(2):
        put(FaultyStore(MemoryStore(), nth({1: Fault.DROPPED, 2: Fault.DROPPED})), KEY, OURS)
        waits.append(time.slept[-2:])
    assert waits[0] != waits[1]


def test_without_patience_there_is_one_try(time: Time) -> None:
    store = FaultyStore(MemoryStore(), always(Fault.DROPPED))
    assert put(store, KEY, OURS, patience=0) == (Put.UNKNOWN, None)
    assert store.requests == {"create": 1, "read": 1}
    assert time.slept == []


def test_a_key_that_leaves_the_root_is_no_matter_of_trying() -> None:
    with pytest.raises(InvalidName):
        put(MemoryStore(), "../x", OURS)


@pytest.mark.parametrize(("fault", "there"), [(Fault.KILLED_BEFORE, None), (Fault.KILLED_AFTER, OURS)])
def test_nothing_catches_a_kill(fault: Fault, there: bytes | None) -> None:
    store = FaultyStore(MemoryStore(), always(fault))
    with pytest.raises(Killed):
        put(store, KEY, OURS)
    assert store.inner.read(KEY) == there


def test_equal_bytes_are_stored_whoever_put_them() -> None:
    """What every coordinator builds alike, a seal, needs no nonce: it is there, and that is what was wanted."""
    store = MemoryStore()
    assert put(store, "chk-1/_metadata", b"seal") == put(store, "chk-1/_metadata", b"seal") == (Put.STORED, b"seal")
