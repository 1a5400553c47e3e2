"""Registered objects of a job: their states in its checkpoints, and their notifications, also after ``kill -9``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.errors import CheckpointFailed, Declined, InvalidName, WrongUse
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.spark import CheckpointedJob, open_checkpoint
from airflow_checkpoint_provider.spark.attempt.settings import Settings
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.support.causes import cause_of
from tests.support.faults import Call, Fault, FaultyStore, served
from tests.support.objects import Calls, Hook, Own
from tests.support.parts import parts
from tests.support.runs import Home
from tests.support.waiting import wait_until

CaptureFixture = pytest.CaptureFixture[str]


def stage(job: CheckpointedJob, uid: str) -> int:
    return job.stage(uid, job.spark.range(3)).count()


def checkpoints(script: Script) -> dict[int, Checkpoint]:
    return {checkpoint.id: checkpoint for checkpoint in script.coordinator().state.checkpoints}


def held(script: Script, number: int) -> dict[str, Any]:
    """The states of a completed checkpoint by uid, with the JSON of those that have no rows."""
    seal = script.coordinator().read_seal(checkpoints(script)[number])
    return {uid: state.value for uid, state in seal.states.items()}


# -- asked and told ----------------------------------------------------------------------------------------------------


def test_object_is_called_at_each_barrier_and_notified_before_the_next(script: Script) -> None:
    """Prepared, asked, told; with the checkpoint's own id from the first call on."""
    calls: Calls = []
    with script.attempt() as job:
        job.register("hook", Hook(calls, {"at": 1}, "hook"))
        stage(job, "first")
        job.checkpoint()
        assert calls[-1] == ("complete", "hook", 2), "who waits for the checkpoint knows what is told"
    rounds = [
        [("prepare", "hook", number), ("snapshot", "hook", barrier, number), ("complete", "hook", number)]
        for number, barrier in ((1, "stage 'first'"), (2, "checkpoint()"), (3, "end"))
    ]
    assert calls == [*(call for calls_of_one in rounds for call in calls_of_one), ("close", "hook")]
    assert [state.kind for state in checkpoints(script)[1].states] == ["stage", "registered"]


def test_state_of_an_object_is_restored_and_can_be_opened(script: Script) -> None:
    with script.attempt() as job:
        job.register("own", Own(says={"at": 7}))
        job.register("hook without state", Own())
    pointer = f"{script.coordinator().store.uri}/{script.coordinator().keys.prefix}/chk-1"
    opened = open_checkpoint(pointer, script.spark)
    assert (opened.uids, opened["own"]) == (("own",), {"at": 7})
    own, hook = Own(says={"at": 8}), Own()
    with script.attempt() as job:
        job.register("own", own)
        job.register("hook without state", hook)
    assert own.given
    assert hook.given
    assert (own.given.state, own.given.checkpoint_id) == ({"at": 7}, 1)
    assert (hook.given.state, hook.given.restored) == (None, True)
    assert held(script, 2) == {"own": {"at": 8}}


def test_state_of_an_unregistered_object_is_kept(script: Script) -> None:
    all_of_them = CheckpointConfig(retention=KeepAll())
    with script.attempt() as job:
        job.register("own", Own(says=7))
    own = Own(says=8)
    with script.attempt(checkpointing=all_of_them) as job:
        stage(job, "first")
        job.register("own", own)
        stage(job, "second")
    with script.attempt(checkpointing=all_of_them) as job:
        job.checkpoint()
    newest = max(checkpoints(script))
    assert (held(script, 2)["own"], held(script, 3)["own"], held(script, newest)) == (7, 8, {"own": 8})
    assert own.given
    assert own.given.state == 7


def test_gated_checkpoint_holds_the_state_and_notifies_after_finalize(script: Script) -> None:
    calls: Calls = []
    hook = Hook(calls, 1, "hook")
    with script.attempt(checkpointing=CheckpointConfig(retention=KeepAll())) as job:
        job.register("hook", hook)
        gated = script.coordinator().trigger(Request(token="audit", timeout_s=60.0, gated=True, origin="task"))
        wait_until(lambda: parts(job).attempt.journal.state.pending, say="the watch has not seen it")
        stage(job, "first")
        hook.says = 2
        job.checkpoint()
        assert ("complete", "hook", gated) not in calls
        script.coordinator().complete(gated, finalize=True)
        wait_until(lambda: not parts(job).checkpointer.gated_checkpoints.deadlines, say="the watch has not seen it")
    assert held(script, gated)["hook"] == 1
    assert calls.count(("complete", "hook", gated)) == 1


# -- declined ----------------------------------------------------------------------------------------------------------


def test_object_that_raises_declines_its_checkpoint_and_a_gated_one_is_taken_at_the_next_barrier(
    script: Script, capsys: CaptureFixture
) -> None:
    calls: Calls = []
    hook = Hook(calls, ValueError("no position"), "hook")
    with script.attempt() as job:
        job.register("hook", hook)
        task = script.coordinator()
        plain = task.trigger(Request(token="task", timeout_s=60.0))
        gated = task.trigger(Request(token="audit", timeout_s=60.0, gated=True))
        wait_until(lambda: len(parts(job).attempt.journal.state.pending) == 2, say="the watch has not seen them")
        assert stage(job, "first") == 3
        hook.says = 1
        job.checkpoint()
        script.coordinator().complete(gated, finalize=True)
    out = capsys.readouterr().out
    declined = checkpoints(script)[plain]
    assert (declined.status, declined.reason, cause_of(declined).missing) == (ABORTED, "declined", ("",))
    assert (
        cause_of(declined).details == "'hook': snapshot_state: ValueError: no position; the next barrier asks it again"
    )
    assert ("aborted", "hook", plain, None) in calls
    assert ("complete", "hook", gated) in calls
    assert f"ABORTED chk-{plain} of job: declined" in out
    assert "NOT PROTECTED: the checkpoint at stage 'first': 'hook': snapshot_state: ValueError" in out
    assert held(script, 3).keys() == {"first", "hook"}


def test_declined_checkpoint_without_request_is_in_the_journal(script: Script) -> None:
    own = Own(says=object())
    with script.attempt() as job:
        job.register("own", own)
        stage(job, "first")
        own.says = 1
    declined, last = checkpoints(script).values()
    assert (declined.request.barrier, declined.status, declined.reason) == ("stage 'first'", ABORTED, "declined")
    assert (last.request.barrier, last.status) == ("end", RETAINED)


def test_explicit_checkpoint_raises_the_error_of_the_object(script: Script) -> None:
    own = Own(says=ValueError("no position"))
    with script.attempt() as job:
        job.register("own", own)
        with pytest.raises(Declined, match="'own': snapshot_state: ValueError: no position"):
            job.checkpoint()
        own.says = 1


def test_run_is_not_finished_if_its_last_checkpoint_is_declined(script: Script) -> None:
    def main() -> None:
        with script.attempt() as job:
            job.register("own", Own(says=ValueError("no position")))

    with pytest.raises(Declined):
        main()
    assert script.coordinator().state.attempts[0].outcome == "failed"


def test_hook_without_state_is_notified_of_true_outcomes_while_the_store_fails(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no id, is told nothing, and who waits is told that nothing was saved, though no state changed."""

    def read_only(call: Call) -> Fault:
        return Fault.NONE if call.kind in ("read", "list") else Fault.DENIED

    store = FaultyStore(LocalStore(script.root))
    monkeypatch.setattr(Settings, "open_store", lambda _: store)
    calls: Calls = []
    with script.attempt() as job:
        job.register("hook", Hook(calls, name="hook"))
        store.plan = read_only
        with pytest.raises(CheckpointFailed):
            job.checkpoint()
        store.plan = served
    assert calls[:2] == [("prepare", "hook", None), ("snapshot", "hook", "checkpoint()", None)]
    assert calls[-2:] == [("complete", "hook", 1), ("close", "hook")]


# -- refused -----------------------------------------------------------------------------------------------------------


def test_invalid_object_is_refused_at_register(script: Script) -> None:
    with script.attempt() as job:
        job.register("own", Own())
        with pytest.raises(WrongUse, match="uid 'own' is used twice"):
            job.register("own", Own())
        with pytest.raises(InvalidName, match="not blank"):
            job.register(" ", Own())
        with pytest.raises(WrongUse, match="has no method"):
            job.register("text", "text")  # type: ignore[arg-type]


def test_checkpoint_inside_a_snapshot_is_declined(script: Script) -> None:
    class Nested(Own):
        def snapshot_state(self, ctx: object) -> int:
            if self.says:
                job.checkpoint()
            return 1

    nested = Nested(says="nested")
    with script.attempt() as job:
        job.register("nested", nested)
        with pytest.raises(
            Declined, match="WrongUse: a stage or checkpoint was called inside snapshot_state of 'nested'"
        ):
            job.checkpoint()
        nested.says = None


def test_damaged_state_is_refused_before_any_object_is_called(script: Script, capsys: CaptureFixture) -> None:
    with script.failing() as job:
        job.register("own", Own(says=7))
        job.checkpoint()
    seal = next(script.root.rglob("chk-1/_metadata"))
    seal.write_bytes(seal.read_bytes().replace(b'"value":7', b'"value":8'))
    script.lose_beats()
    own = Own()
    with pytest.raises(SystemExit), script.attempt() as job:
        job.register("own", own)
    assert own.given is None
    assert "chk-1/_metadata is not what the journal says" in capsys.readouterr().out


# -- killed ------------------------------------------------------------------------------------------------------------


def noted(home: Home) -> list[Any]:
    """What the object was called with since the last look; of barriers only those that were reached."""
    calls = Path(f"{home.out}.calls")
    found = [json.loads(line) for line in calls.read_text().splitlines()]
    calls.unlink()
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_retry_continues_with_the_newest_state_after_a_kill_between_barriers(tmp_path: Path) -> None:
    """First after the source moved on and before that was saved, then after it was saved and before anybody was told."""
    home = Home(tmp_path / "home", "positions.py")
    home.killed("stage/second/rows-written")
    first = noted(home)
    assert first[:3] == [["initialize", None, None], ["prepare", 1], ["snapshot", 1, "stage 'first'"]]
    home.killed("checkpoint/1/completed")
    assert noted(home)[:3] == [["initialize", 1, {"at": 10}], ["prepare", 2], ["snapshot", 2, "stage 'second'"]]
    ended = home.run()
    assert ended.code == 0, ended.log
    calls = noted(home)
    assert calls[0] == ["initialize", 2, {"at": 20}]
    assert [call for call in calls if call[0] == "complete"] == [["complete", 3], ["complete", 4]]
    assert ended.result == {"sums": {"first": 45, "second": 145, "third": 245}, "at": 30, "attempt": 3}
    assert ended.computed == ["third"]
