"""``RestoreOperator`` decides where the next attempt starts: once, verified, and it fences what runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider.coordinator import restore_target as restoring
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.restore import Restored, examine
from airflow_checkpoint_provider.coordinator.savepoint import dispose, publish_due
from airflow_checkpoint_provider.errors import (
    AlreadyClaimed,
    HistoryIsClosed,
    InvalidConfig,
    InvalidName,
    RenameConflict,
)
from airflow_checkpoint_provider.operators import RestoreOperator, TriggerSavepointOperator
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED
from airflow_checkpoint_provider.protocol.commands import CloseHistory
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkDetail
from airflow_checkpoint_provider.storage import Store
from tests.support.acting import RUN, Job
from tests.support.tasks import OTHER, kill_in, run, trigger


@pytest.fixture
def job(store: Store) -> Job:
    """Return a running job with two kept checkpoints."""
    job = Job(store)
    job.start(retention=KeepAll())
    for request in ("one", "two"):
        job.complete(job.coordinator.trigger(Request(token=request)))
    return job


def restore(where: Any, **options: Any) -> RestoreOperator:
    with DAG(OTHER, schedule=None):
        return RestoreOperator(task_id="restore", job="orders", restore=where, **options)


def test_restore_fences_the_attempt_and_the_next_starts_from_the_point(job: Job) -> None:
    assert run(restore("chk-1")) == {"job": "orders", "scope": "", "branch": 1, "next_start": "chk-1"}
    assert job.state.over(1)
    assert job.state.branch.reason == f"task {OTHER}.restore of run {RUN}"
    job.start(try_number=2)
    assert str(job.state.attempts[-1].restore_point) == "chk-1"


@pytest.mark.parametrize("value", ["no", 1, None])
def test_rewind_sink_that_is_neither_true_nor_false_is_refused(value: object) -> None:
    with pytest.raises(InvalidConfig, match=r"rewind_sink=.*: write True or False"):
        restore("latest", rewind_sink=value)


def test_restore_logs_what_becomes_of_rows_in_sinks(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    held = SinkDetail(format="files", target="/data/report", version=1)
    later = StateSnapshot(uid="report", kind="sink", run="later", sink=held)
    job.complete(job.coordinator.trigger(Request(token="three")), later)
    job.end()
    run(restore("chk-1"))
    assert (
        "may refuse  sink 'report': rows that later runs have committed to /data/report stay" in capsys.readouterr().out
    )
    run(restore("chk-2", rewind_sink=True), dag_id="maintenance")
    assert (
        "deletes     sink 'report': rows that later runs have committed to /data/report are" in capsys.readouterr().out
    )


@pytest.mark.parametrize(("where", "start"), [("latest", "chk-2"), ("run-start", None), ("none", None), (1, "chk-1")])
def test_restore_accepts_ids_and_places_by_name(job: Job, where: Any, start: str | None) -> None:
    assert run(restore(where))["next_start"] == start


def test_restore_accepts_the_output_of_a_trigger(job: Job) -> None:
    asked = run(trigger())
    job.complete(asked["id"])
    assert run(restore(asked))["next_start"] == "chk-3"


def test_retry_of_a_restore_changes_nothing(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(restore("chk-1"))
    job.start(try_number=2, retention=KeepAll())
    job.complete(job.coordinator.trigger(Request(token="three")))
    before = job.state
    assert run(restore("chk-1"), try_number=2) == first
    out = capsys.readouterr().out
    assert re.search(r"restored before: branch 1 was opened at \S+ from chk-1 by this task", out)
    assert job.state == before


def test_retry_names_a_later_restore_of_another_task(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    run(restore("chk-1"))
    run(restore("none"), dag_id="maintenance")
    assert run(restore("chk-1"), try_number=2)["next_start"] is None
    out = capsys.readouterr().out
    assert re.search(rf"at \S+ from nothing by a later restore: task maintenance\.restore of run {RUN} ", out)


def test_killed_restore_fences_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    restores = restore("chk-1")
    kill_in(monkeypatch, restores, restoring, "examine")
    with pytest.raises(AirflowException, match="was killed"):
        run(restores)
    assert job.state.branch.number == 0


def test_cleared_restore_restores_again(job: Job) -> None:
    run(restore("chk-1"))
    assert run(restore("chk-1"), try_number=2, max_tries=1)["branch"] == 2


def test_damaged_checkpoint_is_refused_and_the_attempt_goes_on(job: Job) -> None:
    job.store.delete([job.keys.seal(1)])
    with pytest.raises(AirflowFailException, match="chk-1 cannot be restored"):
        run(restore("chk-1"))
    assert not job.state.over(1)


def test_absent_checkpoint_is_refused_without_retry(job: Job) -> None:
    with pytest.raises(AirflowFailException):
        run(restore("chk-9"))
    assert job.state.branch.number == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "lastest"}, "restore='lastest' is not a place to start from: write \"latest\", "),
        ({"where": None}, "restore=None is not a place to start from"),
        ({"where": {"job": "orders"}}, r"restore=\{'job': 'orders'\} is not a place to start from"),
        ({"where": "none", "claim_mode": "claim"}, "which is not a savepoint from elsewhere"),
        ({"where": 7, "claim_mode": "claim"}, "which is not a savepoint from elsewhere"),
        (
            {"where": "s3://lake/jobs/orders/job/chk-7", "claim_mode": "claim"},
            "which is not a savepoint from elsewhere",
        ),
        ({"where": "latest", "rename": "a=b"}, "rename='a=b': write the new uids by the old ones"),
        ({"where": "latest", "rename": {"a": "c", "b": "c"}}, "two states would be called 'c'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidConfig, InvalidName, RenameConflict), match=message):
        restore(**options)


def test_templates_and_outputs_are_checked_when_the_task_runs(job: Job) -> None:
    with DAG(OTHER, schedule=None):
        saves = TriggerSavepointOperator(task_id="saves", job="orders")
        RestoreOperator(task_id="restore", job="orders", restore=saves.output, claim_mode="claim")
    task = restore("{{ params.where }}")
    task.render_template_fields({"params": {"where": "lastest"}})
    with pytest.raises(AirflowFailException, match="restore='lastest' is not a place to start from"):
        run(task)


def test_restore_of_a_job_without_history_is_refused(store: Store) -> None:
    Job(store, scope=RUN).start()
    with pytest.raises(AirflowFailException, match=r"there is no history .* its runs have histories of their own"):
        run(restore("latest"))


@pytest.mark.parametrize("mode", ["legacy", "mine"])
def test_invalid_claim_mode_is_refused(mode: str) -> None:
    with pytest.raises(InvalidConfig, match=f"claim_mode='{mode}'"):
        restore("latest", claim_mode=mode)


def test_latest_is_decided_when_the_entry_is_written(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job completes chk-3 while chk-2 is verified: the restore takes chk-3, so no work is lost unseen."""
    verify = examine
    verified: list[str] = []

    def slowly(coordinator: Coordinator, state: State, point: Point | None, **asked: Any) -> Restored:
        if not verified:
            job.complete(job.coordinator.trigger(Request(token="three")))
        verified.append(str(point))
        return verify(coordinator, state, point, **asked)

    monkeypatch.setattr(restoring, "examine", slowly)
    assert run(restore("latest"))["next_start"] == "chk-3"
    assert verified == ["chk-2", "chk-3"]


# -- savepoints ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def others_savepoint(store: Store) -> str:
    """Return the target of savepoint chk-3 of another job in the same store."""
    other = Job(store, "payments")
    other.start()
    for request in ("one", "two"):
        other.complete(other.coordinator.trigger(Request(token=request)))
    number = other.coordinator.trigger(
        Request(token="save", kind="savepoint", origin="user", folder=f"{store.uri}/theirs")
    )
    other.complete(number)
    publish_due(other.coordinator)
    other.complete(other.coordinator.trigger(Request(token="four")))
    return str(other.checkpoint(number).target)


def test_savepoint_of_the_job_is_restored_by_its_id(job: Job) -> None:
    number = job.coordinator.trigger(
        Request(token="save", kind="savepoint", origin="user", folder=f"{job.store.uri}/mine")
    )
    job.complete(number)
    publish_due(job.coordinator)
    saved = {"job": "orders", "scope": "", "id": number, "pointer": job.checkpoint(number).target}
    assert run(restore(saved))["next_start"] == f"chk-{number}"


def test_savepoint_of_another_job_is_restored_from_its_target_and_raises_ids(job: Job, others_savepoint: str) -> None:
    assert job.state.next_id == 3
    assert run(restore(others_savepoint))["next_start"] == others_savepoint
    assert job.state.next_id == 4
    assert job.state.claims == ()
    job.start(try_number=2)
    assert str(job.state.attempts[-1].restore_point) == others_savepoint


def test_claimed_savepoint_belongs_to_the_job(
    job: Job, others_savepoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(restore(others_savepoint, claim_mode="claim"))
    assert "claimed     the savepoint belongs to this job" in capsys.readouterr().out
    assert [claim.pointer for claim in job.state.claims] == [others_savepoint]
    with pytest.raises(AlreadyClaimed):
        dispose(job.store, others_savepoint, "ann", "2026-11-20T00:00:00Z")


def test_second_claim_of_one_history_adds_no_claim(job: Job, others_savepoint: str) -> None:
    run(restore(others_savepoint, claim_mode="claim"))
    assert run(restore(others_savepoint, claim_mode="claim"), try_number=2, max_tries=1)["branch"] == 2
    assert len(job.state.claims) == 1


def test_claim_of_a_claimed_savepoint_is_refused_and_the_attempt_goes_on(
    job: Job, others_savepoint: str, store: Store
) -> None:
    third = Job(store, "stock")
    third.start()
    with DAG(OTHER, schedule=None):
        run(RestoreOperator(task_id="first", job="stock", restore=others_savepoint, claim_mode="claim"))
    with pytest.raises(AirflowFailException, match="was claimed for another history"):
        run(restore(others_savepoint, claim_mode="claim"))
    assert not job.state.over(1)
    assert run(restore(others_savepoint))["next_start"] == others_savepoint  # several may start from it


def test_refused_restore_claims_nothing(store: Store, others_savepoint: str) -> None:
    closing = Job(store, "stock")
    closing.start()
    closing.end()
    closing.coordinator.journal.append(CloseHistory(reason="the run finished", now="2027-01-01T00:00:00Z"))
    with DAG(OTHER, schedule=None), pytest.raises(HistoryIsClosed):
        run(RestoreOperator(task_id="restore", job="stock", restore=others_savepoint, claim_mode="claim"))
    pointer = SavepointPointer.parse(others_savepoint)
    assert store.read(f"theirs/{pointer.name}/_claimed") is None
    assert Job(store, "payments").checkpoint(3).status == RETAINED


def test_claim_of_an_own_checkpoint_is_refused(job: Job, others_savepoint: str) -> None:
    with pytest.raises(AirflowFailException, match="is not a savepoint of another history"):
        run(restore("latest", claim_mode="claim"))
    assert not job.state.over(1)
    run(restore(others_savepoint))
    run(restore("latest", claim_mode="claim"), max_tries=1)
    assert [claim.pointer for claim in job.state.claims] == [others_savepoint]


# -- renamed states --------------------------------------------------------------------------------------------------------


def test_renamed_states_are_recorded_in_the_branch(job: Job) -> None:
    run(restore("chk-1", rename={"rows": "counted"}))
    assert job.state.branch.rename == {"rows": "counted"}
    run(restore("latest"), max_tries=1)
    assert job.state.branch.number == 2
    assert job.state.branch.rename == {"rows": "counted"}


@pytest.mark.parametrize("rename", [{"nobody": "counted"}, {"rows": "clean"}, {"rows": ""}])
def test_invalid_renames_are_refused_and_the_attempt_goes_on(job: Job, rename: dict[str, str]) -> None:
    with pytest.raises(AirflowFailException):
        run(restore("chk-1", rename=rename))
    assert not job.state.over(1)
