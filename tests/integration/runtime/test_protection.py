"""The store fails while a job runs: the job goes on and logs it, and no run is finished with unsaved states."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.errors import CheckpointFailed
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.attempt.settings import Settings
from airflow_checkpoint_provider.spark.checkpoints import task as checkpoint_task
from airflow_checkpoint_provider.storage import LocalStore, Store
from tests.integration.runtime.conftest import Script
from tests.support.faults import Call, Fault, FaultyStore, nth, served
from tests.support.parts import parts
from tests.support.waiting import wait_until

CaptureFixture = pytest.CaptureFixture[str]


@pytest.fixture
def store(script: Script, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The store of every attempt of the script."""
    store = FaultyStore(LocalStore(script.root))
    monkeypatch.setattr(Settings, "open_store", lambda _: store)
    return store


def read_only(call: Call) -> Fault:
    return Fault.NONE if call.kind in ("read", "list") else Fault.DENIED


def stage(job: CheckpointedJob, uid: str) -> int:
    return job.stage(uid, job.spark.range(3)).count()


def held(script: Script) -> dict[int, list[str]]:
    """Completed checkpoints by id, with the names of their states."""
    return {
        checkpoint.id: [state.uid for state in checkpoint.states] for checkpoint in script.coordinator().state.retained
    }


def test_job_is_protected_again_after_the_store_was_read_only(
    script: Script, store: FaultyStore, capsys: CaptureFixture
) -> None:
    with script.attempt() as job:
        stage(job, "first")
        job.checkpoint()
        store.plan = read_only
        assert stage(job, "second") == 3, "the job goes on"
        assert stage(job, "third") == 3
        out = capsys.readouterr().out
        assert "NOT PROTECTED: the checkpoint at stage 'second'" in out
        assert "denied, by plan" in out
        store.plan = served
        stage(job, "fourth")
        job.checkpoint()
        assert "NOT PROTECTED" not in capsys.readouterr().out
    assert max(held(script).items())[1] == ["first", "fourth", "second", "third"]


def test_run_is_not_finished_if_its_last_checkpoint_fails(
    script: Script, store: FaultyStore, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main() -> None:
        with script.attempt() as job:
            stage(job, "first")
            job.checkpoint()
            store.plan = read_only
            job.value("count").set(1)

    with pytest.raises(CheckpointFailed, match="the last checkpoint is not completed"):
        main()
    assert "the end of attempt 1 could not be written" in capsys.readouterr().out
    store.plan = served
    script.lose_beats()
    monkeypatch.setenv(VARIABLE, "0.1")  # the next attempt waits for three heartbeats of this one
    first = script.recomputes("first")
    with script.attempt() as job:
        stage(job, "first")
        assert job.value("count").get() is None
    assert not first()
    assert [run.key for run in script.coordinator().state.runs] == ["alone-1"]


@pytest.mark.timeout(300)
def test_failing_script_ends_while_the_store_is_down(script: Script, store: FaultyStore) -> None:
    """Its last checkpoint is tried again and again, but nobody waits for it any more."""
    with script.failing() as job:
        store.plan = read_only
        stage(job, "first")


def test_explicit_checkpoint_raises_if_it_fails(script: Script, store: FaultyStore) -> None:
    with script.attempt() as job:
        job.value("count").set(1)
        store.plan = read_only
        with pytest.raises(CheckpointFailed, match="the checkpoint is not completed"):
            job.checkpoint()
        job.checkpoint(wait=False)
        store.plan = served
        job.checkpoint()


def test_attempt_fails_if_the_store_is_down_at_the_start(script: Script, store: FaultyStore) -> None:
    store.plan = read_only
    with pytest.raises(PermissionError), script.attempt():
        pass
    assert not script.root.exists()


@pytest.mark.parametrize(
    "lost", [pytest.param(put, marks=() if put == 4 else pytest.mark.slow) for put in range(1, 8)]
)  # the model loses the answer of each put
def test_lost_answer_loses_no_checkpoint(script: Script, store: FaultyStore, lost: int) -> None:
    """Of each put: the attempt's start; trigger, acknowledgement, seal, completion of chk-1; the next trigger; and so on."""
    store.plan = nth({lost: Fault.LOST})
    with script.attempt() as job:
        stage(job, "first")
        job.value("count").set(1)
    assert held(script) == {1: ["first"], 2: ["count", "first"]}


def test_unknown_outcome_is_settled_at_the_next_barrier(
    script: Script, store: FaultyStore, capsys: CaptureFixture
) -> None:
    with script.attempt() as job:
        parts(job).attempt.journal.patience = 0.2
        store.plan = lambda call: (
            Fault.DROPPED if call.kind == "create" and call.key.endswith("_metadata") else Fault.NONE
        )
        stage(job, "first")
        with pytest.raises(CheckpointFailed):
            job.checkpoint()
        assert (
            "NOT PROTECTED: the checkpoint at stage 'first': the store did not say whether the seal of chk-1 was written"
            in capsys.readouterr().out
        )
        store.plan = served
        job.checkpoint()
        assert "chk-1: the store's answer was lost" in capsys.readouterr().out
    assert held(script) == {1: ["first"], 2: ["first"]}


def test_checkpoint_completes_without_another_barrier_once_the_store_is_back(
    script: Script, store: FaultyStore, capsys: CaptureFixture
) -> None:
    """The next barrier may be hours away; a crash until then would repeat the stage."""
    with script.attempt() as job:
        parts(job).attempt.journal.patience = 0.2
        store.plan = lambda call: (
            Fault.DROPPED if call.kind == "create" and call.key.endswith("_metadata") else Fault.NONE
        )
        stage(job, "first")
        wait_until(lambda: "NOT PROTECTED" in capsys.readouterr().out, say="nothing said", every=0.05)
        store.plan = served
        wait_until(lambda: held(script) == {1: ["first"]}, say=lambda: str(held(script)), every=0.1)
    assert held(script) == {1: ["first"]}


def test_retries_of_a_checkpoint_count_as_one_failure(
    script: Script, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each id of Flink's counts once: keys that are denied for some seconds end no healthy job."""
    monkeypatch.setattr(checkpoint_task, "FIRST_WAIT", 0.01)
    with script.attempt() as job:
        store.plan, before = read_only, store.requests["create"]
        stage(job, "first")
        wait_until(lambda: store.requests["create"] > before + 3, say="not tried again", every=0.01)
        assert parts(job).checkpointer.protection.failures == 1
        stage(job, "second")
        parts(job).checkpointer.wait()
        assert parts(job).checkpointer.protection.failures == 2
        store.plan = served
        job.checkpoint()
        assert parts(job).checkpointer.protection.failures == 0


def test_completed_savepoint_resets_the_count_of_failures(script: Script, store: FaultyStore, tmp_path: Path) -> None:
    with script.attempt() as job:
        number = script.coordinator().trigger(
            Request(
                token="a person", kind="savepoint", folder=(tmp_path / "saved").as_uri(), timeout_s=60.0, origin="task"
            )
        )
        store.plan = lambda call: Fault.DENIED if f"chk-{number + 1}/acks" in call.key else Fault.NONE
        stage(job, "first")
        wait_until(lambda: parts(job).checkpointer.protection.failures, say="nothing failed", every=0.01)
        parts(job).checkpointer.wait()
        parts(job).checkpointer.savepoints.wait_begun()
        assert [checkpoint.id for checkpoint in script.coordinator().state.retained] == [number]
        assert parts(job).checkpointer.protection.failures == 0
        store.plan = served


def test_checkpoint_that_is_too_large_is_not_retried_at_its_barrier(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """It would be as large, and each try is an entry."""
    monkeypatch.setattr(checkpoint_task, "FIRST_WAIT", 0.01)
    with script.failing() as job:
        for number in range(1200):
            job.value(f"{number:04d} {'long ' * 12}").set(number)
        job.checkpoint(wait=False)
        wait_until(
            lambda: (flying := parts(job).checkpointer._in_flight) and flying.done(),
            say="tried again and again",
        )
    assert [(checkpoint.id, checkpoint.reason) for checkpoint in script.coordinator().state.checkpoints] == [
        (1, "too large")
    ]
    assert capsys.readouterr().out.count("ABORTED chk-1 of job: too large") == 1


def test_checkpoint_that_is_not_sealed_in_time_is_aborted_at_the_next_barrier(
    script: Script, store: FaultyStore, capsys: CaptureFixture
) -> None:
    with script.attempt() as job:
        parts(job).attempt.journal.patience = 0.05
        store.plan = lambda call: (
            Fault.DROPPED if call.kind == "create" and call.key.endswith("_metadata") else Fault.NONE
        )
        stage(job, "first")
        parts(job).checkpointer.wait()
        parts(job).checkpointer._context.deadline = 0.0  # the timeout has passed
        store.plan = served
        stage(job, "second")
        parts(job).checkpointer.wait()
        assert "ABORTED chk-1 of job: expired, in phase seal" in capsys.readouterr().out
    assert held(script) == {2: ["first", "second"]}


# -- asked from outside ------------------------------------------------------------------------------------------------


def test_requested_checkpoint_is_served_by_the_next_barrier(script: Script) -> None:
    with script.attempt() as job:
        asked = script.coordinator().trigger(Request(token="a task", timeout_s=60.0, origin="task"))
        stage(job, "first")
        job.checkpoint()
    served_by = {
        checkpoint.id: (checkpoint.request.origin, checkpoint.completed_at != "")
        for checkpoint in script.coordinator().state.checkpoints
    }
    assert served_by == {asked: ("task", True), asked + 1: ("barrier", True)}


def test_requested_checkpoint_is_served_at_the_end_of_the_script(script: Script) -> None:
    with script.attempt() as job:
        stage(job, "first")
        job.checkpoint()
        asked = script.coordinator().trigger(Request(token="a task", timeout_s=60.0, origin="task"))
        wait_until(lambda: parts(job).attempt.journal.state.pending, say="the watch has not seen it")
    assert held(script)[asked] == ["first"]


def test_barrier_takes_its_own_checkpoint_after_a_requested_one_was_aborted(script: Script) -> None:
    with script.attempt() as job:
        task = script.coordinator()
        asked = task.trigger(Request(token="a task", timeout_s=60.0, origin="task"))
        wait_until(lambda: parts(job).attempt.journal.state.pending, say="the watch has not seen it")
        task.abort(asked, "changed my mind")
        stage(job, "first")
    assert held(script) == {asked + 1: ["first"]}


def test_driver_reads_its_journal_while_it_deletes(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old checkpoints of many GiB take long to delete; a fence or a stop does not wait for that."""
    delete = garbage.delete
    seen: list[int] = []

    def delete_slowly(
        store: Store, keys: Keys, state: State, part: garbage.Retired, now: str, check: garbage.Check
    ) -> garbage.Deleted:
        if not seen:
            number = script.coordinator().trigger(Request(token="a person", timeout_s=60.0, origin="task"))
            wait_until(lambda: parts(job).attempt.journal.state.checkpoint(number), say="nobody looks at the journal")
            seen.append(number)
        return delete(store, keys, state, part, now, check)

    monkeypatch.setattr(garbage, "delete", delete_slowly)
    with script.attempt(checkpointing=CheckpointConfig(retention=KeepLatest(1))) as job:
        for uid in ("first", "second", "third"):
            stage(job, uid)
    assert seen
    assert len(held(script)) == 1, "and what is due is deleted"
