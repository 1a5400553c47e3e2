"""Savepoints in the state machine: which are held, who may condemn them, and claims. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from airflow_checkpoint_provider.checkpoint import KeepAll, KeepLatest, KeepWithin
from airflow_checkpoint_provider.errors import Held, NotPending
from airflow_checkpoint_provider.policies.retention import Retention
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED
from airflow_checkpoint_provider.protocol.commands import Refusal
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.deletion import held, held_claims, retained_by_policy
from airflow_checkpoint_provider.protocol.events import Point
from tests.support.histories import Given, History, at, clear, in_turn, launch, refusal

TARGET = "s3://lake/savepoints"
FOREIGN = "s3://lake/savepoints/savepoint-orders-41-9f3c"
NOW = datetime.fromisoformat(at(60))
TOKEN_2, TOKEN_3 = (e.Token(dag="ops", run=f"later {n}", task="restore") for n in (2, 3))


def running(retention: Retention | None = None) -> History:
    history = History()
    history.started(checkpointing=CheckpointConfig(retention=retention or KeepLatest(1)).to_json())
    return history


def saved(history: History, kind: str = "savepoint") -> int:
    """A completed savepoint."""
    number = history.triggered(kind=kind, folder=TARGET, nonce="9f3c", origin="task", owner="ops.savepoint")
    return history.completed(number=number)


def asked(history: History, command: c.Command) -> str:
    decision = history.ask(command)
    return type(decision.error).__name__ if isinstance(decision, Refusal) else "accepted"


# -- beside the sequence of checkpoints --------------------------------------------------------------------------------


def test_retention_policy_does_not_count_savepoints() -> None:
    """``KeepLatest(1)`` keeps the newest checkpoint, however many savepoints came after it."""
    history = running(KeepLatest(1))
    first = history.completed()
    for _ in range(3):
        saved(history)
    assert retained_by_policy(history.state, NOW, over=False) == {first}
    assert [savepoint.id for savepoint in history.state.savepoints] == [2, 3, 4]


def test_newest_savepoint_is_the_restore_point() -> None:
    history = running()
    history.completed()
    number = saved(history)
    assert history.state.restore_point() == Point(id=number)
    newer = history.completed()
    assert history.state.restore_point() == Point(id=newer)


def test_savepoint_subsumes_nothing_and_is_not_subsumed() -> None:
    history = running()
    older = history.triggered(origin="task")
    number = history.triggered(kind="savepoint", folder=TARGET, nonce="9f3c", origin="task")
    history.completed(number=number)
    assert [checkpoint.id for checkpoint in history.state.pending] == [older]
    another = history.triggered(kind="savepoint", folder=TARGET, nonce="9f3c", origin="task")
    history.completed(number=older)
    history.completed()
    assert [checkpoint.id for checkpoint in history.state.pending] == [another]


def test_stop_savepoint_subsumes_older_checkpoints() -> None:
    history = running()
    older = history.triggered(origin="task")
    plain = history.triggered(kind="savepoint", folder=TARGET, nonce="9f3c", origin="task")
    saved(history, "suspend_savepoint")
    aborted = history.state.checkpoint(older)
    assert aborted
    assert (aborted.status, aborted.reason) == ("aborted", "subsumed")
    assert [checkpoint.id for checkpoint in history.state.pending] == [plain]


def test_file_sets_of_a_savepoint_are_not_in_the_table() -> None:
    history = running()
    saved(history)
    assert not history.state.file_sets
    assert history.state.savepoints[0].file_sets == ()


def test_savepoint_does_not_release_the_restore_point_of_its_attempt() -> None:
    """As in Flink, only the first *checkpoint* releases the restore point."""
    history = running()
    base = history.completed()
    history.ended("failed")
    history.started(try_number=2)
    saved(history)
    assert base in history.state.restoring()
    history.completed()
    assert not history.state.restoring()


# -- published ---------------------------------------------------------------------------------------------------------


def test_only_a_completed_savepoint_can_be_confirmed_as_published() -> None:
    history = running()
    checkpoint = history.completed()
    number = history.triggered(kind="savepoint", folder=TARGET, nonce="9f3c", origin="task")
    assert asked(history, c.ConfirmPublished(id=checkpoint)) == "NotPending"
    assert asked(history, c.ConfirmPublished(id=number)) == "NotPending"
    history.completed(number=number)
    history.do(c.ConfirmPublished(id=number))
    assert history.state.savepoints[0].published


# -- disposing ---------------------------------------------------------------------------------------------------------


def test_savepoint_is_condemned_only_by_a_disposal() -> None:
    history = running()
    number = saved(history)
    history.completed()
    now = at(60)
    assert asked(history, c.Condemn(ids=(number,), now=now)) == "Held"
    history.do(c.Condemn(ids=(number,), now=now, disposing=True))
    history.do(c.Forget(ids=(number,)))
    assert not history.state.savepoints


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(saved, id="the restore point"),
        pytest.param(in_turn(saved, lambda h: h.ended("failed"), lambda h: h.launched(try_number=2)), id="chosen by a launch"),
        pytest.param(
            in_turn(
                saved, lambda h: h.ended("failed"), lambda h: h.started(try_number=2), saved
            ),
            id="an attempt started from it and has no checkpoint of its own",
        ),
        pytest.param(
            in_turn(saved, lambda h: h.ended("finished"), lambda h: h.started("day-2"), lambda h: h.completed()),
            id="where the newest run started",
        ),
    ],
)  # fmt: skip
def test_needed_savepoint_is_held_by_its_history(given: Given) -> None:
    history = running()
    given(history)
    assert asked(history, c.Condemn(ids=(1,), now=at(60), disposing=True)) == "Held"
    assert 1 in held(history.state, NOW)


# -- claims ------------------------------------------------------------------------------------------------------------


def claiming(history: History, **other: object) -> None:
    token = e.Token(dag="ops", run="now", task="restore")
    history.do(
        c.Restore(
            token=token, base=Point(pointer=FOREIGN), by="ops.restore", reason="upgrade", claimed=True, id_floor=41,
            rename={"sum": "total"},
        )
    )  # fmt: skip


def test_restore_from_a_foreign_savepoint_raises_ids() -> None:
    history = running()
    history.completed()
    claiming(history)
    assert history.state.next_id == 42
    history.started(try_number=2)
    assert history.completed() == 42
    assert history.state.branch.rename == {"sum": "total"}


def test_claim_is_held_until_the_policy_has_enough_checkpoints() -> None:
    history = running(KeepLatest(2))
    claiming(history)
    history.started(try_number=2, checkpointing=CheckpointConfig(retention=KeepLatest(2)).to_json())
    assert held_claims(history.state, NOW) == {FOREIGN}
    history.completed()
    assert asked(history, c.Condemn(ids=(), claims=(FOREIGN,), now=at(60))) == "Held"
    history.completed()
    history.do(c.Condemn(ids=(), claims=(FOREIGN,), now=at(60)))
    assert [claim.status for claim in history.state.claims] == ["condemned"]
    history.do(c.Forget(ids=(), claims=(FOREIGN,)))
    assert not history.state.claims


@pytest.mark.parametrize(
    ("retention", "kept"), [(KeepWithin(days=1), True), (KeepWithin(seconds=1), False), (KeepAll(), True), (KeepLatest(1), False)]
)  # fmt: skip
def test_claim_counts_in_every_policy(retention: Retention, kept: bool) -> None:
    history = running(retention)
    claiming(history)
    history.started(try_number=2, checkpointing=CheckpointConfig(retention=retention).to_json())
    history.completed()
    assert bool(held_claims(history.state, NOW)) is kept


def test_claims_and_checkpoints_count_together() -> None:
    """The history owns four claims and keeps two."""
    history = running(KeepLatest(2))
    policy = CheckpointConfig(retention=KeepLatest(2)).to_json()
    for number in range(4):
        claim_one(history, number)
    history.started("day-2", checkpointing=policy)
    assert held_claims(history.state, NOW) == {f"{FOREIGN}2", f"{FOREIGN}3"}
    history.completed()
    history.started("day-3", checkpointing=policy)
    assert held_claims(history.state, NOW) == {f"{FOREIGN}3"}
    history.do(c.Condemn(ids=(), claims=(f"{FOREIGN}2",), now=at(60)))
    history.completed()
    assert held_claims(history.state, NOW) == frozenset()


def claim_one(history: History, number: int) -> None:
    base = Point(pointer=f"{FOREIGN}{number}")
    token = replace(TOKEN_2, generation=number)
    history.do(c.Restore(token=token, base=base, by="ops", reason="", claimed=True, id_floor=41))


def test_condemned_claim_does_not_count_in_the_policy() -> None:
    history = running(KeepLatest(1))
    policy = CheckpointConfig(retention=KeepLatest(1)).to_json()
    for number in range(2):
        claim_one(history, number)
    older = f"{FOREIGN}0"
    history.do(c.Restore(token=TOKEN_3, base=Point(pointer=older), by="ops", reason=""))
    history.started("day-2", checkpointing=policy)
    history.completed()
    history.do(c.Condemn(ids=(), claims=(f"{FOREIGN}1",), now=at(60)))
    history.do(c.Restore(token=replace(TOKEN_3, generation=1), base=None, by="ops", reason=""))
    history.started("day-3", checkpointing=policy)
    assert held_claims(history.state, NOW) == {older}


@pytest.mark.parametrize("where", [{}, {"restore": FOREIGN, "base": Point(pointer=FOREIGN)}], ids=["nothing", "there"])
def test_ended_history_holds_no_claim_and_is_not_closed_with_one(where: dict[str, Any]) -> None:
    """The start of its run does not count."""
    history = History("day-1")
    policy = CheckpointConfig(retention=KeepLatest(5)).to_json()
    history.started(checkpointing=policy, **where)
    claiming(history)
    history.started(try_number=2, checkpointing=policy)
    assert held_claims(history.state, NOW) == {FOREIGN}
    history.ended()
    assert held_claims(history.state, NOW) == frozenset()
    assert asked(history, c.CloseHistory(reason="the run finished", now=at(60))) == "StillNeeded"
    history.do(c.Condemn(ids=(), claims=(FOREIGN,), now=at(60)))
    history.do(c.Forget(ids=(), claims=(FOREIGN,)))
    assert asked(history, c.CloseHistory(reason="the run finished", now=at(60))) == "accepted"


def test_history_is_not_closed_before_its_savepoints_are_published() -> None:
    """Until then their seals lie only in the history."""
    history = History("day-1")
    history.started(checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())
    number = saved(history)
    history.ended()
    close = c.CloseHistory(reason="the run finished", now=at(60))
    assert asked(history, close) == "StillNeeded"
    history.do(c.ConfirmPublished(id=number))
    assert asked(history, close) == "accepted"


def test_condemned_claim_is_no_restore_point() -> None:
    """Its files may still exist, but they are being deleted."""
    history = running(KeepLatest(1))
    claiming(history)
    policy = CheckpointConfig(retention=KeepLatest(1)).to_json()
    history.started(try_number=2, checkpointing=policy)
    history.completed()
    history.do(c.Restore(token=TOKEN_2, base=Point(id=42), by="ops", reason=""))
    history.started("day-2", checkpointing=policy)
    history.completed()
    history.do(c.Condemn(ids=(), claims=(FOREIGN,), now=at(60)))
    for claimed in (True, False):
        again = c.Restore(token=TOKEN_3, base=Point(pointer=FOREIGN), by="ops", reason="", claimed=claimed)
        assert asked(history, again) == "StateRequired"
    assert asked(history, launch("day-3", restore=FOREIGN, base=Point(pointer=FOREIGN))) == "StateRequired"


def test_claim_is_held_while_the_newest_run_started_there() -> None:
    """A cleared run starts there again."""
    history = running(KeepLatest(1))
    claiming(history)
    policy = CheckpointConfig(retention=KeepLatest(1)).to_json()
    history.started("day-2", checkpointing=policy)
    for _ in range(3):
        history.completed()
    assert held_claims(history.state, NOW) == {FOREIGN}
    history.ended()
    history.started("day-3", checkpointing=policy)
    assert held_claims(history.state, NOW) == frozenset()


def test_held_lists_no_checkpoint_if_the_run_started_from_a_claim() -> None:
    history = running()
    claiming(history)
    history.started("day-2")
    assert held(history.state, NOW) == frozenset()


OTHER = f"{TARGET}/savepoint-orders-42-77aa"


def owning_two() -> History:
    """Return a history that claims two savepoints and starts from the second."""
    history = running(KeepLatest(1))
    for number, pointer in enumerate((OTHER, FOREIGN)):
        token = e.Token(dag="ops", run="now", task="restore", generation=number)
        base = Point(pointer=pointer)
        history.do(c.Restore(token=token, base=base, by="ops.restore", reason="", id_floor=42, claimed=True))
    return history


def test_condemn_deletes_only_the_named_claim() -> None:
    history = owning_two()
    history.started(try_number=2, checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())
    history.completed()
    (condemned,) = history.do(c.Condemn(ids=(), claims=(OTHER,), now=at(60)))
    assert condemned == e.CheckpointsCondemned(ids=(), claims=(OTHER,))
    assert {claim.pointer: claim.status for claim in history.state.claims} == {OTHER: "condemned", FOREIGN: RETAINED}
    history.do(c.Forget(ids=(), claims=(OTHER,)))
    assert [claim.pointer for claim in history.state.claims] == [FOREIGN]


def test_claimed_base_is_held_until_its_branch_has_a_checkpoint() -> None:
    """Checkpoints of earlier branches and savepoints do not count."""
    history = running(KeepLatest(1))
    history.completed()
    claiming(history)
    history.started(try_number=2, checkpointing=CheckpointConfig(retention=KeepWithin(minutes=1)).to_json())
    saved(history)
    assert held_claims(history.state, NOW) == {FOREIGN}
    held_back = refusal(history.ask(c.Condemn(ids=(), claims=(FOREIGN,), now=at(60))), Held)
    assert held_back.about["ids"] == [FOREIGN]
    assert held_back.message.startswith(FOREIGN)
    unforgotten = refusal(history.ask(c.Forget(ids=(), claims=(FOREIGN,))), Held)
    assert unforgotten.about["ids"] == [FOREIGN]
    assert unforgotten.message.startswith(FOREIGN)
    history.completed()
    assert held_claims(history.state, NOW) == frozenset()


def test_confirmation_of_a_deleted_savepoint_is_done_already() -> None:
    history = running()
    number = saved(history)
    history.completed()
    for command in (c.Condemn(ids=(number,), now=at(60), disposing=True), c.Forget(ids=(number,))):
        history.do(command)
        assert history.ask(c.ConfirmPublished(id=number)) == c.DoneAlready(number)
    unknown = refusal(history.ask(c.ConfirmPublished(id=99)), NotPending)
    assert unknown.about["status"] is None
    assert "the journal does not list it" in unknown.message
    assert refusal(history.ask(c.ConfirmPublished(id=2)), NotPending).about["status"] == RETAINED


def test_replaced_driver_cannot_forget() -> None:
    history = running()
    history.completed()
    history.completed()
    history.condemned(1)
    history.started(try_number=2)
    assert asked(history, c.Forget(ids=(1,), epoch=1)) == "Fenced"


def test_pending_checkpoint_cannot_be_forgotten() -> None:
    history = running()
    number = history.triggered()
    assert refusal(history.ask(c.Forget(ids=(number,))), Held).about["ids"] == [number]


def test_restore_ends_the_suspension_and_aborts_pending_checkpoints() -> None:
    history = running()
    history.completed()
    stopped = saved(history, "suspend_savepoint")
    token = e.Token(dag="ops", run="now", task="restore")
    events = history.do(c.Restore(token=token, base=Point(id=stopped), by="ops", reason="go on"))
    assert events[-1] == e.Resumed(by="ops", reason="go on")
    assert history.state.suspended is None
    history.started(try_number=2)
    left = history.triggered()
    again = history.do(c.Restore(token=replace(token, generation=1), base=None, by="ops", reason="anew"))
    assert again[1:] == (
        e.CheckpointAborted(id=left, reason="restore", phase="acknowledge", missing=("",), details="anew"),
    )


# -- renamed -------------------------------------------------------------------------------------------------------------


def test_cleared_run_keeps_the_renames_of_its_base() -> None:
    history = running()
    claiming(history)
    history.started("day-2")
    history.completed()
    history.ended()
    history.do(clear("day-2", run_after="2026-11-02T00:00:00Z"))
    assert (history.state.branch.base, history.state.branch.rename) == (Point(pointer=FOREIGN), {"sum": "total"})


def test_claim_that_is_not_condemned_cannot_be_forgotten() -> None:
    history = running()
    claiming(history)
    assert asked(history, c.Forget(ids=(), claims=(FOREIGN,))) == "Held"
    assert [claim.status for claim in history.state.claims] == [RETAINED]


def test_savepoint_that_is_the_restore_point_is_held_from_policy_and_disposal() -> None:
    """Both a policy and a disposal are refused."""
    history = running()
    number = saved(history)
    assert asked(history, c.Condemn(ids=(number,), now=at(60))) == "Held"
    assert asked(history, c.Condemn(ids=(number,), now=at(60), disposing=True)) == "Held"


def test_claim_needed_by_run_and_policy_is_held() -> None:
    """The claim is the start of the newest run, and the policy keeps it."""
    history = running(KeepAll())
    claiming(history)
    history.started("day-2", checkpointing=CheckpointConfig(retention=KeepAll()).to_json())
    assert held_claims(history.state, NOW) == {FOREIGN}
