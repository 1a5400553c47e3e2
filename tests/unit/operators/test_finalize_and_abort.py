"""``FinalizeCheckpointOperator`` and ``AbortCheckpointOperator``: effect, conditions and repetition."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.errors import InvalidConfig, NotPending
from airflow_checkpoint_provider.operators import AbortCheckpointOperator, FinalizeCheckpointOperator
from airflow_checkpoint_provider.protocol.events import Request
from tests.support.acting import Job
from tests.support.causes import cause_of
from tests.support.garbage import retire
from tests.support.tasks import OTHER, kill_in, run, trigger


def finalize(checkpoint: Any) -> FinalizeCheckpointOperator:
    with DAG(OTHER, schedule=None):
        return FinalizeCheckpointOperator(task_id="finalize", checkpoint=checkpoint)


def abort(checkpoint: Any, **options: Any) -> AbortCheckpointOperator:
    with DAG(OTHER, schedule=None):
        return AbortCheckpointOperator(task_id="abort", checkpoint=checkpoint, **options)


@pytest.fixture
def asked(job: Job) -> dict[str, Any]:
    answer: dict[str, Any] = run(trigger(gated=True))
    return answer


def test_finalize_completes_a_gated_checkpoint(job: Job, asked: dict[str, Any]) -> None:
    job.acknowledge(1)
    with pytest.raises(NotPending, match="gated"):
        job.coordinator.complete(1)
    assert run(finalize(asked)) == asked
    assert job.checkpoint(1).status == "retained"


def test_second_finalize_changes_nothing(job: Job, asked: dict[str, Any]) -> None:
    job.acknowledge(1)
    first = run(finalize(asked))
    before = job.state
    assert run(finalize(asked), try_number=2) == first
    assert job.state == before


def test_finalize_of_a_completed_checkpoint_changes_nothing(job: Job) -> None:
    asked = run(trigger())
    job.complete(1)
    before = job.state
    assert run(finalize(asked)) == asked
    assert job.state == before


def test_finalize_of_a_deleted_checkpoint_succeeds(job: Job) -> None:
    asked = run(trigger())
    for number in (1, 2, 3):
        job.coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0)) if number > 1 else None
        job.complete(number)
    retire(job.coordinator, utc_now())
    assert job.checkpoint(1).status == "forgotten"
    assert run(finalize(asked)) == asked


def test_finalize_before_the_acknowledgement_fails_until_a_retry(job: Job, asked: dict[str, Any]) -> None:
    with pytest.raises(NotPending, match="put a CheckpointAcknowledgedSensor before this task"):
        run(finalize(asked))
    assert job.checkpoint(1).status == "pending"
    assert job.store.read(job.keys.seal(1)) is None
    job.acknowledge(1)
    assert run(finalize(asked), try_number=2) == asked


def test_finalize_of_an_aborted_checkpoint_fails_without_retry(job: Job, asked: dict[str, Any]) -> None:
    job.acknowledge(1)
    job.abort(1, "expired")
    with pytest.raises(AirflowFailException, match=r"was aborted: expired\. Clear task orders_audited\.trigger"):
        run(finalize(asked))


@pytest.mark.parametrize("reason", [None, "", " ", 7, b"because"])
def test_abort_without_a_reason_in_words_is_refused_where_it_is_written(reason: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"reason=.*: write text that says why"):
        abort("s3://lake/jobs/orders/job/chk-1", reason=reason)


def test_abort_records_task_and_reason(job: Job, asked: dict[str, Any]) -> None:
    assert run(abort(asked, reason="audit failed")) == asked
    found = job.checkpoint(1)
    assert (found.status, found.reason, cause_of(found).phase, cause_of(found).missing) == (
        "aborted",
        "audit failed",
        "acknowledge",
        ("",),
    )
    assert cause_of(found).details == "by task orders_audited.abort of run manual__1"


def test_abort_after_the_acknowledgement_records_the_finalize_phase(job: Job, asked: dict[str, Any]) -> None:
    job.acknowledge(1)
    run(abort(asked))
    found = job.checkpoint(1)
    assert (found.reason, cause_of(found).phase, cause_of(found).missing) == ("aborted by a DAG", "finalize", ())


def test_second_abort_changes_nothing(job: Job, asked: dict[str, Any]) -> None:
    first = run(abort(asked))
    before = job.state
    assert run(abort(asked, reason="another"), try_number=2) == first
    assert job.state == before


def test_abort_of_an_aborted_checkpoint_succeeds(job: Job, asked: dict[str, Any]) -> None:
    job.abort(1, "expired")
    assert run(abort(asked)) == asked
    assert job.checkpoint(1).reason == "expired"


def test_abort_of_a_completed_checkpoint_is_skipped(job: Job, asked: dict[str, Any]) -> None:
    job.acknowledge(1)
    run(finalize(asked))
    with pytest.raises(AirflowSkipException, match="nothing was changed"):
        run(abort(asked))
    assert job.checkpoint(1).status == "retained"


def test_abort_is_skipped_without_a_checkpoint(job: Job) -> None:
    with pytest.raises(AirflowSkipException, match="no checkpoint was triggered"):
        run(abort(None))


def test_abort_of_an_unknown_checkpoint_fails(job: Job) -> None:
    with pytest.raises(AirflowFailException, match="never heard of it"):
        run(abort(f"{job.store.uri}/{job.keys.checkpoint(9)}"))


@pytest.mark.parametrize("task", [finalize, abort])
def test_killed_task_changes_nothing(
    job: Job, asked: dict[str, Any], task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.acknowledge(1)
    ends = task(asked)
    kill_in(monkeypatch, ends, CheckpointRequest, "find")
    with pytest.raises(AirflowException, match="was killed"):
        run(ends)
    assert job.checkpoint(1).status == "pending"


@pytest.mark.parametrize("task", [finalize, abort])
@pytest.mark.parametrize("wrong", [7, {}, {"pointer": None}])
def test_value_that_is_no_checkpoint_is_refused(job: Job, task: Any, wrong: object) -> None:
    with pytest.raises(AirflowFailException, match=r"write checkpoint=trigger\.output"):
        run(task(wrong))


def test_finalize_of_none_is_refused(job: Job) -> None:
    with pytest.raises(AirflowFailException, match="None is not a checkpoint"):
        run(finalize(None))


@pytest.mark.parametrize("task", [finalize, abort])
def test_only_checkpoint_is_a_template(task: Any) -> None:
    assert tuple(task(None).template_fields) == ("checkpoint",)
