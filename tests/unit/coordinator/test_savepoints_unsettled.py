"""Savepoints whose store does not answer, and the check of a claim. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL, check_claim
from airflow_checkpoint_provider.errors import AlreadyClaimed, CommitStateUnknown
from tests.support.faults import Fault, FaultyStore, virtual_time
from tests.support.histories import at
from tests.support.saved import MINE, OTHER, Saved, memory


@pytest.fixture
def saved() -> Saved:
    return Saved(memory())


@pytest.mark.parametrize(
    ("step", "key"),
    [
        pytest.param(lambda saved, target: saved.publish(target), "_metadata", id="publish"),
        pytest.param(lambda saved, target: saved.claim(MINE, target), "_claimed", id="claim"),
        pytest.param(lambda saved, target: saved.dispose(target), "_claimed", id="dispose"),
    ],
)
def test_step_without_an_answer_is_unknown_and_may_be_repeated(
    saved: Saved, step: Callable[[Saved, FaultyStore], object], key: str
) -> None:
    """The repeated step is done once."""
    target = FaultyStore(saved.target, lambda call: Fault.LATE if call.kind == "create" else Fault.NONE)
    with (
        virtual_time(),
        pytest.raises(CommitStateUnknown, match=rf"whether .*/{key} was written\. Nothing was cleaned up"),
    ):
        step(saved, target)
    target.land()
    step(saved, FaultyStore(saved.target))
    assert key in saved.left()


@pytest.mark.parametrize("owner", [MINE, DISPOSAL])
def test_check_claim_claims_nothing(saved: Saved, owner: str) -> None:
    saved.publish()
    before = saved.left()
    check_claim(saved.target, saved.pointer, owner)
    assert saved.left() == before
    saved.claim(owner)
    check_claim(saved.target, saved.pointer, owner)


@pytest.mark.parametrize(
    ("holder", "asks", "whose", "advice"),
    [
        (MINE, OTHER, "for another history", 'without a claim (claim_mode="no_claim") several jobs may start from one'),
        (DISPOSAL, OTHER, "to be disposed of", "Take another savepoint"),
        (MINE, DISPOSAL, "for another history", "That deletes it when its retention keeps it no more"),
    ],
)
def test_refused_claim_names_the_owner_and_the_next_step(
    saved: Saved, holder: str, asks: str, whose: str, advice: str
) -> None:
    saved.publish()
    saved.claim(holder)
    for ask in (saved.claim, partial(check_claim, saved.target, saved.pointer)):
        with pytest.raises(AlreadyClaimed) as raised:
            ask(asks)
        assert f"was claimed {whose} at {at(5)} by who claims for {holder}" in raised.value.message
        assert advice in raised.value.message
        told = {"owner": holder, "by": f"who claims for {holder}", "at": at(5), "incarnation": ""}
        assert raised.value.about == told
