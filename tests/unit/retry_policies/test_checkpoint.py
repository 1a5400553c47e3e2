"""The retry policy: what it fails, what it leaves to Airflow, and that it raises nothing."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, RetryAction, RetryDecision
from airflow.serialization.serialized_objects import DagSerialization

from airflow_checkpoint_provider.errors import InvalidConfig, StoreUnavailable
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.retry_policies import CheckpointRetryPolicy
from airflow_checkpoint_provider.storage import Store
from tests.support.acting import RUN, Job
from tests.support.faults import Fault, FaultyStore, always
from tests.support.tasks import ti

FAILURE = RuntimeError("attempt failed (exit code 1)")


def operator(**options: Any) -> CheckpointedSparkSubmitOperator:
    with DAG("etl", schedule=None, max_active_runs=1):
        return CheckpointedSparkSubmitOperator(
            **{"task_id": "job", "application": "job.py", "job_id": "orders", "scope": "job", **options}
        )


def context(try_number: int, task: BaseOperator | None = None) -> dict[str, Any]:
    task = task or operator()
    return {"task": task, "ti": ti(task.task_id, dag_id="etl", try_number=try_number, max_tries=10)}


def decided(try_number: int, stuck_after: int = 3, task: BaseOperator | None = None, **options: Any) -> RetryDecision:
    policy = CheckpointRetryPolicy(stuck_after, **options)
    return policy.evaluate(FAILURE, try_number, 10, context(try_number, task))


def failed(job: Job, try_number: int, checkpoints: int = 0) -> None:
    job.start(try_number)
    for _ in range(checkpoints):
        job.take()
    job.end("failed")


def test_task_is_failed_after_so_many_tries_without_a_newer_checkpoint(store: Store) -> None:
    job = Job(store)
    failed(job, 1, checkpoints=1)
    actions = [decided(1).action]
    for number in (2, 3, 4):
        failed(job, number)
        actions.append(decided(number).action)
    assert actions == [RetryAction.DEFAULT] * 3 + [RetryAction.FAIL]
    reason = decided(4).reason
    assert reason is not None
    assert reason.startswith(f"orders, run {RUN}: 3 tries in a row have completed no newer checkpoint than chk-1 (")
    assert "chk-1 (try 2, try 3, try 4). Another one would repeat the same work" in reason
    assert f"`airflow checkpoints story orders {RUN}`" in reason
    assert reason.endswith("[CKP510]")


def test_progress_in_each_try_goes_on(store: Store) -> None:
    job = Job(store)
    for number in (1, 2, 3):
        failed(job, number, checkpoints=1)
        decision = decided(number, stuck_after=1)
        assert decision.action is RetryAction.DEFAULT
        assert decision.reason == f"this try has completed a newer checkpoint, chk-{number}"


def streamed(job: Job, try_number: int, start: int, end: int) -> None:
    """Let a try run a query from batch ``start``, commit up to batch ``end``, and fail before its first checkpoint."""
    job.start(try_number)
    epoch, query = job.state.last_epoch, job.state.query("orders")
    path = f"query/orders/{epoch}-abc"
    command = c.LocateQuery(
        uid="orders",
        path=path,
        taken_from=query.newest.path if query else None,
        begun=start,
        committed=start,
        epoch=epoch,
    )
    job.coordinator.journal.append(command)
    if query:
        job.coordinator.journal.append(c.SettleQuery(uid="orders", path=path, epoch=epoch))
    for batch in range(end + 1):
        job.store.create(f"{job.keys.file_set(path)}/commits/{batch}", b"v1\n{}")
    job.end("failed")


def test_stream_that_commits_batches_goes_on(store: Store) -> None:
    job = Job(store)
    for number in (1, 2, 3, 4):
        streamed(job, number, 5 * number, 5 * number + 5)
        decision = decided(number, stuck_after=1)
        assert decision.action is RetryAction.DEFAULT
        assert decision.reason == "the queries of this try have committed newer batches"


def test_stream_that_dies_in_one_batch_is_failed(store: Store) -> None:
    job = Job(store)
    streamed(job, 1, -1, 5)
    for number in (2, 3, 4):
        streamed(job, number, 5, 5)
    assert decided(4, stuck_after=4).action is RetryAction.DEFAULT
    decision = decided(4)
    assert decision.action is RetryAction.FAIL
    assert "3 tries in a row have completed no checkpoint, and committed no newer batch (try 2, try 3, try 4)" in str(
        decision.reason
    )


def test_lost_workers_count(store: Store) -> None:
    """Airflow does not ask the policy about them."""
    job = Job(store)
    job.start(1)
    job.start(2)
    failed(job, 3)
    assert decided(3).action is RetryAction.FAIL


def test_driver_that_may_still_run_is_not_given_up(store: Store) -> None:
    """The task lost only its track of it. The next try adopts it."""
    job = Job(store)
    failed(job, 1)
    job.start(2)
    decision = decided(2, stuck_after=2)
    assert decision.action is RetryAction.DEFAULT
    assert "the next try looks whether it still runs" in (decision.reason or "")


def test_try_that_launched_nothing_is_left_to_airflow(store: Store) -> None:
    """Its storage did not answer, or another run of the job was alive."""
    job = Job(store)
    for number in (1, 2):
        failed(job, number)
    assert decided(3, stuck_after=2).action is RetryAction.DEFAULT
    assert decided(2, stuck_after=2).action is RetryAction.FAIL


def test_older_try_that_lives_on_decides_nothing(store: Store) -> None:
    """Its worker was lost, and a newer try has begun."""
    job = Job(store)
    for number in (1, 2):
        failed(job, number)
    assert decided(1, stuck_after=1).action is RetryAction.DEFAULT


def test_delay_is_that_of_airflow_or_the_policys(store: Store) -> None:
    failed(Job(store), 1)
    assert decided(1).retry_delay is None
    decision = decided(1, delay=timedelta(seconds=7))
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=7))
    assert decided(1, stuck_after=1, delay=timedelta(seconds=7)).action is RetryAction.FAIL


# -- it raises nothing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [None, timedelta(seconds=7)])
def test_store_that_does_not_answer_leaves_it_to_airflow(
    store: Store, faulty: FaultyStore, delay: timedelta | None, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3):
        failed(Job(store), number)
    faulty.plan = always(Fault.NOT_SENT, "read")
    with caplog.at_level(logging.WARNING):
        decision = decided(3, delay=delay)
    assert decision.action is (RetryAction.RETRY if delay else RetryAction.DEFAULT)
    assert decision.retry_delay == delay
    (line,) = [record.getMessage() for record in caplog.records if "CKP511" in record.getMessage()]
    assert StoreUnavailable.code in line


def test_anything_else_that_fails_leaves_it_to_airflow(caplog: pytest.LogCaptureFixture) -> None:
    policy = CheckpointRetryPolicy()
    plain = BaseOperator(task_id="plain")
    for given in (
        None,
        {},
        {"ti": None, "task": None},
        context(1, plain),
        context(1, operator(checkpoint_conn_id="no")),
    ):
        caplog.clear()
        assert policy.evaluate(FAILURE, 1, 10, given).action is RetryAction.DEFAULT
        assert len([record for record in caplog.records if "CKP511" in record.getMessage()]) == 1
    assert "a BaseOperator, which works on no checkpointed job" in _line(policy, context(1, plain), caplog)


def _line(policy: CheckpointRetryPolicy, given: Any, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    policy.evaluate(FAILURE, 1, 10, given)
    return caplog.records[-1].getMessage()


# -- its arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"stuck_after": 0},
        {"stuck_after": 101},
        {"stuck_after": "3"},
        {"stuck_after": True},
        {"delay": 7},
        {"delay": timedelta(seconds=-1)},
    ],
)
def test_wrong_argument_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        CheckpointRetryPolicy(**options)


@pytest.mark.parametrize("policy", [CheckpointRetryPolicy(), CheckpointRetryPolicy(5, timedelta(seconds=1.5))])
def test_policy_is_serialised_as_json(policy: CheckpointRetryPolicy) -> None:
    again = CheckpointRetryPolicy.deserialize(json.loads(json.dumps(policy.serialize())))
    assert (again.stuck_after, again.delay) == (policy.stuck_after, policy.delay)


def test_dag_with_a_policy_is_serialised() -> None:
    """Airflow stores only that there is one."""
    task = operator(retry_policy=CheckpointRetryPolicy())
    stored = DagSerialization.to_dict(task.dag)
    (found,) = stored["dag"]["tasks"]
    assert found["__var"]["has_retry_policy"] is True
    assert DagSerialization.from_dict(stored).get_task("job").has_retry_policy
