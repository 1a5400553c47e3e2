"""A savepoint is complete or absent after a kill at any request, and a disposed one never comes back. Runs anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

from airflow_checkpoint_provider.errors import AlreadyClaimed, CommitStateUnknown, StoreUnavailable
from airflow_checkpoint_provider.storage import Store
from tests.support.faults import Call, Fault, FaultyStore, Killed, virtual_time
from tests.support.saved import MINE, OTHER, Saved, memory

HURT = (Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.LOST, Fault.NOT_SENT, Fault.DROPPED, Fault.LATE)
Act = Callable[[Saved, Store], object]
ACTS: dict[str, Act] = {
    "publish": lambda saved, store: saved.publish(store),
    "claim": lambda saved, store: saved.claim(MINE, store),
    "dispose": lambda saved, store: saved.dispose(store),
}


def requests(act: Act, *, published: bool) -> int:
    saved = Saved(memory())
    if published:
        saved.publish()
    counting = FaultyStore(saved.target)
    act(saved, counting)
    return counting.requests.total()


def after_each_hurt(act: Act, *, published: bool) -> Iterator[tuple[Saved, FaultyStore]]:
    """Yield a savepoint after ``act`` with each fault at each of its requests."""
    for number, fault in itertools.product(range(1, requests(act, published=published) + 1), HURT):
        saved = Saved(memory())
        if published:
            saved.publish()
        store = FaultyStore(saved.target, partial(_only, number, fault))
        with virtual_time(), suppress(Killed, StoreUnavailable, CommitStateUnknown):
            act(saved, store)
        store.plan = lambda _: Fault.NONE
        yield saved, store


def _only(number: int, fault: Fault, call: Call) -> Fault:
    return fault if call.number == number else Fault.NONE


def test_killed_publication_is_finished_by_the_next() -> None:
    for saved, store in after_each_hurt(ACTS["publish"], published=False):
        assert saved.is_() in ("none", "whole")
        saved.publish()
        store.land()
        assert saved.is_() == "whole"


def test_killed_claim_is_repeated_or_lost_to_another() -> None:
    for saved, store in after_each_hurt(ACTS["claim"], published=True):
        try:
            saved.claim(OTHER)
            owner = OTHER
        except AlreadyClaimed:
            owner = MINE
        store.land()
        saved.claim(owner)
        with pytest.raises(AlreadyClaimed):
            saved.claim(MINE if owner == OTHER else OTHER)
        assert saved.is_() == "whole"


@pytest.mark.parametrize("published", [True, False])
def test_killed_disposal_is_finished_by_the_next(published: bool) -> None:
    for saved, store in after_each_hurt(ACTS["dispose"], published=published):
        assert saved.is_() in ("whole" if published else "none", "disposed")
        saved.dispose(by="bob")
        store.land()
        assert (saved.is_(), saved.left()) == ("disposed", ["_claimed", "_metadata"])


@pytest.mark.parametrize("published", [True, False])
def test_publication_after_part_of_a_disposal_brings_nothing_back(published: bool) -> None:
    for saved, store in after_each_hurt(ACTS["dispose"], published=published):
        before = saved.is_()
        saved.publish()
        assert saved.is_() == ("disposed" if before == "disposed" else "whole")
        store.land()
        saved.dispose(by="bob")
        assert (saved.is_(), saved.left()) == ("disposed", ["_claimed", "_metadata"])


def test_claimed_savepoint_stays_complete_after_part_of_a_disposal() -> None:
    """The claiming history read the seal before the disposal and claims after it."""
    for saved, store in after_each_hurt(ACTS["dispose"], published=True):
        try:
            saved.claim(MINE)
        except AlreadyClaimed:
            continue
        store.land()
        assert saved.is_() == "whole"
        with pytest.raises(AlreadyClaimed):
            saved.dispose()
        assert saved.is_() == "whole"
