"""``TriggerCheckpointOperator``: which job it asks, that it asks once, and what it waits for."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout, TaskDeferred
from airflow.sdk.execution_time.timeout import TimeoutPosix

from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.errors import InvalidConfig, InvalidName, NotRunning, NotSupportedYet, Queued
from airflow_checkpoint_provider.operators import (
    CheckpointedSparkSubmitOperator,
    RestoreOperator,
    StopWithSavepointOperator,
    TriggerCheckpointOperator,
    TriggerSavepointOperator,
)
from airflow_checkpoint_provider.operators._job import JobOperator
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.sensors import CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store, open_store
from tests.support.acting import RUN, Job
from tests.support.causes import cause_of
from tests.support.tasks import OTHER, run, soon, ti, trigger


def submits(**options: Any) -> CheckpointedSparkSubmitOperator:
    return CheckpointedSparkSubmitOperator(task_id="delays", application="job.py", **options)


# -- the request -----------------------------------------------------------------------------------------------------------


def test_trigger_returns_the_pointer_of_its_checkpoint(job: Job) -> None:
    answer = run(trigger())
    pointer = f"{job.store.uri}/jobs/orders/job/chk-1"
    assert answer == {"job": "orders", "scope": "", "id": 1, "pointer": pointer, "incarnation": "of orders"}
    assert json.loads(json.dumps(answer)) == answer
    found = job.checkpoint(1)
    assert (found.status, found.request.gated, found.request.origin, found.timeout_s) == (
        "pending",
        False,
        "task",
        600.0,
    )


def test_trigger_passes_gated_and_timeout_on(job: Job) -> None:
    run(trigger(gated=True, timeout="2 min"))
    assert (job.checkpoint(1).request.gated, job.checkpoint(1).timeout_s) == (True, 120.0)


def test_trigger_passes_the_kind_on(job: Job) -> None:
    run(trigger(kind="full_checkpoint"))
    assert job.checkpoint(1).kind == "full_checkpoint"


def test_timeout_of_the_job_is_used_if_the_trigger_has_none(store: Store) -> None:
    job = Job(store)
    job.start(timeout="3 min")
    run(trigger())
    assert job.checkpoint(1).timeout_s == 180.0


def test_retry_returns_the_checkpoint_of_the_earlier_try(job: Job) -> None:
    first = run(trigger())
    assert run(trigger(), try_number=2) == first
    job.complete(1)
    assert run(trigger(), try_number=3) == first


def test_retry_triggers_a_new_checkpoint_after_an_abort(job: Job) -> None:
    first = run(trigger())
    job.abort(1)
    assert run(trigger()) == first
    assert run(trigger(), try_number=2)["id"] == 2


def test_cleared_task_triggers_a_new_checkpoint(job: Job) -> None:
    run(trigger())
    job.complete(1)
    assert run(trigger(), try_number=2, max_tries=1)["id"] == 2


@pytest.mark.parametrize(
    "other", [{"map_index": 1}, {"run_id": "manual__2"}, {"task_id": "other"}, {"dag_id": "other"}]
)
def test_other_task_triggers_a_new_checkpoint(job: Job, other: dict[str, Any]) -> None:
    run(trigger())
    job.complete(1)
    assert run(trigger(), **other)["id"] == 2


# -- which job ---------------------------------------------------------------------------------------------------------------


def test_submit_task_as_job_means_its_job_in_this_run(store: Store) -> None:
    job = Job(store, "orders_audited.delays", RUN)
    job.start()
    with DAG("orders_audited", schedule=None):
        asks = TriggerCheckpointOperator(task_id="trigger", job=submits())
    assert asks.upstream_task_ids == set()
    assert asks.downstream_task_ids == set()
    answer = run(asks)
    assert (answer["job"], answer["scope"]) == ("orders_audited.delays", RUN)
    assert json.dumps(asks.job_task_id) == '"delays"'


VERBS: list[Callable[..., JobOperator]] = [
    TriggerCheckpointOperator,
    TriggerSavepointOperator,
    StopWithSavepointOperator,
    partial(RestoreOperator, restore="latest"),
    CheckpointCompletedSensor,
]


@pytest.mark.parametrize("verb", VERBS)
def test_job_id_with_run_means_the_history_of_that_run(verb: Callable[..., JobOperator]) -> None:
    """A task of another DAG has no operator to name, and its own run id is another one."""
    with DAG("another", schedule=None):
        task = verb(task_id="t", job="orders_audited.delays", run="{{ params.of }}")
        empty = verb(task_id="empty", job="orders_audited.delays", run="")
    task.render_template_fields({"params": {"of": RUN}})
    assert task.history(ti(dag_id="another", run_id="its own")) == History("orders_audited.delays", RUN)
    with pytest.raises(InvalidConfig, match="run= is '' after its template was rendered"):
        empty.history(ti())
    empty.run = 20261120  # type: ignore[assignment]  # by render_template_as_native_obj
    with pytest.raises(InvalidConfig, match="run= is 20261120 after its template was rendered"):
        empty.history(ti())


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("name", "said"), [("run", "run= is None"), ("item", "item=None is not text")])
def test_run_or_item_that_is_rendered_to_none_means_no_other_history(
    verb: Callable[..., JobOperator], name: str, said: str
) -> None:
    with DAG("another", schedule=None, render_template_as_native_obj=True):
        task = verb(task_id="t", job="orders", **{name: "{{ none }}"})
    task.render_template_fields({})
    assert getattr(task, name) is None
    with pytest.raises((InvalidConfig, InvalidName), match=said):
        task.history(ti())


def test_task_of_another_dag_triggers_a_checkpoint_of_the_named_run(store: Store) -> None:
    Job(store, "orders_audited.delays", "another run").start()
    job = Job(store, "orders_audited.delays", RUN)
    job.start()
    answer = run(trigger("orders_audited.delays", run=RUN), dag_id="another", run_id="its own")
    assert (answer["job"], answer["scope"], len(job.state.pending)) == ("orders_audited.delays", RUN, 1)


def test_run_beside_an_operator_is_refused() -> None:
    with DAG("orders_audited", schedule=None), pytest.raises(InvalidConfig, match="run='x' needs a job id"):
        TriggerCheckpointOperator(task_id="trigger", job=submits(), run="x")


def test_job_id_scope_and_connection_of_the_submit_task_are_used(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "elsewhere")}}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(elsewhere))
    Job(open_store(str(tmp_path / "elsewhere")), "mine", "2026-11-20").start()
    with DAG("orders_audited", schedule=None):
        asks = TriggerCheckpointOperator(
            task_id="t", job=submits(job_id="mine", scope="{{ ds }}", checkpoint_conn_id="mine")
        )
    assert "scope" in asks.template_fields
    assert asks.scope == "{{ ds }}"
    asks.render_template_fields({"ds": "2026-11-20"})
    assert run(asks)["scope"] == "2026-11-20"


def test_connection_of_the_trigger_wins() -> None:
    assert trigger(submits(), checkpoint_conn_id="own").checkpoint_conn_id == "own"


def test_folder_of_local_jobs_is_used_without_a_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hook = "airflow_checkpoint_provider.hooks.checkpoint_storage"
    monkeypatch.setattr(f"{hook}.get_airflow_home", lambda: str(tmp_path))
    monkeypatch.setattr(f"{hook}.find_connection", lambda _: None)  # here is no Airflow to say so
    with pytest.raises(NotRunning, match=r"does not run yet.*no connection 'checkpoint_default'"):
        run(trigger())
    job = Job(open_store(str(tmp_path / "checkpoints")))
    starts = soon(job.start)
    assert run(trigger(start_timeout=30))["pointer"] == f"file://{tmp_path}/checkpoints/jobs/orders/job/chk-1"
    starts.join()


# -- when no driver runs -------------------------------------------------------------------------------------------------------


def test_trigger_fails_with_a_retry_if_the_job_does_not_run(store: Store) -> None:
    with pytest.raises(NotRunning):
        run(trigger())
    job = Job(store)
    job.start()
    job.end("failed")
    with pytest.raises(NotRunning):
        run(trigger())


@pytest.mark.parametrize("begun", [False, True])
def test_trigger_waits_for_the_start_of_the_job(store: Store, begun: bool) -> None:
    job = Job(store)
    if begun:
        job.start()
        job.end("failed")
    starts = soon(lambda: job.start(2))
    assert run(trigger(start_timeout="30 s"))["id"] == 1
    starts.join()


def test_trigger_fails_at_once_if_the_run_has_finished(store: Store) -> None:
    job = Job(store, "orders_audited.delays", RUN)
    job.start()
    job.end()
    with pytest.raises(AirflowFailException, match="finished"):
        run(trigger(submits(), start_timeout=60))


def test_trigger_cleared_with_its_finished_job_may_be_retried(store: Store) -> None:
    job = Job(store, scope=RUN)
    job.start()
    job.end()
    with DAG("etl", schedule=None):
        asks = TriggerCheckpointOperator(task_id="trigger", job=submits(job_id="orders"), retries=0)
    with pytest.raises(NotRunning, match=r"does not run yet.*finished") as refused:
        run(asks, dag_id="etl", max_tries=1)
    assert not refused.value.permanent


def test_trigger_cleared_with_its_job_waits_for_the_new_start(store: Store) -> None:
    job = Job(store, "orders_audited.delays", RUN)
    job.start()
    job.end()
    starts = soon(lambda: job.start(2, generation=1))
    assert run(trigger(submits(), start_timeout=60), try_number=2, max_tries=1)["id"] == 1
    starts.join()


def test_trigger_waits_while_another_checkpoint_is_pending(job: Job) -> None:
    run(trigger())
    other = soon(lambda: job.complete(1))
    assert run(trigger(), max_tries=1)["id"] == 2
    other.join()


def test_trigger_waits_in_the_queue_longer_than_the_checkpoint_timeout(job: Job) -> None:
    """The timeout counts from the barrier; a request that its trigger left would be served all the same."""
    run(trigger())
    other = threading.Timer(0.5, lambda: job.complete(1))
    other.start()
    assert run(trigger(timeout="50 ms", start_timeout=0), max_tries=1)["id"] == 2
    other.join()


def test_trigger_waits_in_the_queue_until_its_execution_timeout(job: Job) -> None:
    run(trigger())
    with pytest.raises(Queued):
        run(trigger(execution_timeout=timedelta(milliseconds=50)), max_tries=1)
    assert len(job.state.checkpoints) == 1


def test_unknown_job_is_refused_with_the_root_that_was_searched(store: Store) -> None:
    """A job given by its id has ``scope="job"``: all its runs share one history."""
    Job(store, scope=RUN).start()
    for name, mend in (
        ("orders", "its runs have histories of their own: name the run as run=, or give the"),
        ("ordrs", "check the job id, or start"),
    ):
        for kind in (TriggerCheckpointOperator, StopWithSavepointOperator):
            with DAG(OTHER, schedule=None):
                asks = kind(task_id="asks", job=name)
            message = f'no history of job .{name}. with scope="job" under {store.uri}; {mend}'
            with pytest.raises(NotRunning, match=message) as refused:
                run(asks)
            assert not refused.value.permanent


def test_unknown_connection_fails_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_checkpoint_provider.hooks.checkpoint_storage.find_connection", lambda _: None)
    with DAG(OTHER, schedule=None):
        waits = CheckpointCompletedSensor(task_id="waits", job="orders", checkpoint_conn_id="mien", timeout=600)
    for task in (trigger(checkpoint_conn_id="mien", start_timeout=600), waits):
        with pytest.raises(AirflowFailException, match="no connection 'mien'"):
            run(task)


def test_trigger_killed_while_it_waits_for_the_job_requests_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = trigger(start_timeout=60)
    job = Job(store)

    def killed(*_: object) -> None:
        asks.on_kill()
        job.start()

    monkeypatch.setattr(TriggerCheckpointOperator, "_sleep", killed)
    with pytest.raises(AirflowException, match="was killed"):
        run(asks)
    assert job.state.checkpoints == ()


def once_asked(job: Job, does: Callable[[], object]) -> threading.Timer:
    def waits() -> None:
        job.wait_asked(1)
        does()

    return soon(waits)


# -- waiting for completion ------------------------------------------------------------------------------------------------------


def test_trigger_waits_for_completion(job: Job) -> None:
    completes = soon(lambda: job.serve(1))
    answer = run(trigger(wait_for_completion=True))
    completes.join()
    assert answer["id"] == 1
    assert job.checkpoint(1).status == "retained"


def test_aborted_checkpoint_fails_the_try_and_a_retry_triggers_another(job: Job) -> None:
    aborts = once_asked(job, lambda: job.abort(1, "expired"))
    with pytest.raises(AirflowException, match=r"was aborted: expired\. Clear task orders_audited.trigger") as error:
        run(trigger(wait_for_completion=True))
    aborts.join()
    assert not isinstance(error.value, AirflowFailException)
    completes = soon(lambda: job.serve(2))
    assert run(trigger(wait_for_completion=True), try_number=2)["id"] == 2
    completes.join()


def test_checkpoint_is_aborted_when_its_trigger_times_out(job: Job) -> None:
    with pytest.raises(AirflowTaskTimeout, match="see execution_timeout="):
        run(trigger(wait_for_completion=True, execution_timeout=timedelta(milliseconds=50)))
    found = job.checkpoint(1)
    assert (found.status, found.reason, cause_of(found).missing) == ("aborted", "nobody waits for it any longer", ("",))
    assert cause_of(found).details == f"by task {OTHER}.trigger of run {RUN}"


def test_checkpoint_is_aborted_when_its_deferred_trigger_times_out(job: Job) -> None:
    """The error is the one that Airflow raises in a task that is not deferred."""
    with pytest.raises(TaskDeferred) as deferred:
        run(trigger(wait_for_completion=True, deferrable=True))
    event = deferred.value.trigger.event() | {"deadline": "2026-11-20T00:00:00+00:00"}
    with pytest.raises(AirflowTaskTimeout, match="see execution_timeout="):
        trigger(wait_for_completion=True, deferrable=True).execute_complete({"ti": ti()}, event)
    assert job.checkpoint(1).status == "aborted"
    assert run(trigger(), try_number=2)["id"] == 2


def test_checkpoint_is_aborted_when_airflow_times_its_trigger_out(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the task waits, and not as soon as the request is in the journal: the task may not have read it back then."""
    monkeypatch.setattr(TriggerCheckpointOperator, "_sleep", lambda *_: os.kill(os.getpid(), signal.SIGALRM))
    with pytest.raises(AirflowTaskTimeout), TimeoutPosix(60):  # type: ignore[no-untyped-call]
        run(trigger(wait_for_completion=True))
    assert job.checkpoint(1).reason == "nobody waits for it any longer"


ENDS = [
    pytest.param(lambda job: job.complete(1), None, id="completed"),
    pytest.param(lambda job: job.abort(1, "declined"), AirflowTaskTimeout, id="aborted"),
]


@pytest.mark.parametrize(("ends", "error"), ENDS)
def test_outcome_at_the_moment_of_the_timeout_wins(
    job: Job, monkeypatch: pytest.MonkeyPatch, ends: Callable[[Job], None], error: type[BaseException] | None
) -> None:
    """A completed checkpoint is returned; an aborted one is not aborted again."""
    abort = CheckpointRequest.abort

    def late(*arguments: Any) -> Any:
        if job.checkpoint(1).status == "pending":
            ends(job)
        return abort(*arguments)

    monkeypatch.setattr(CheckpointRequest, "abort", late)
    asks = trigger(wait_for_completion=True, execution_timeout=timedelta(milliseconds=50))
    if error is None:
        assert run(asks)["id"] == 1
    else:
        with pytest.raises(error):
            run(asks)


def test_trigger_killed_before_its_request_requests_nothing(job: Job) -> None:
    asks = trigger()
    asks.on_kill()
    with pytest.raises(AirflowException, match="was killed"):
        run(asks)
    assert job.state.checkpoints == ()


def test_trigger_killed_while_it_waits_for_completion_aborts_its_checkpoint(job: Job) -> None:
    asks = trigger(wait_for_completion=True)
    kills = once_asked(job, asks.on_kill)
    with pytest.raises(AirflowException, match="was killed"):
        run(asks)
    kills.join()
    assert job.checkpoint(1).status == "aborted"


def test_killed_trigger_does_not_wait_for_its_next_poll(job: Job) -> None:
    """Five seconds after the signal Airflow ends the process for good."""
    asks = trigger(wait_for_completion=True, poke_interval=60)
    kills = once_asked(job, asks.on_kill)
    before = time.monotonic()
    with pytest.raises(AirflowException, match="was killed"):
        run(asks)
    kills.join()
    assert time.monotonic() - before < 30, "half of a poll"
    assert job.checkpoint(1).status == "aborted"


# -- what is refused where it is written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [None, 7, ["orders"], {"job": "orders"}, object()])
def test_value_that_is_no_job_is_refused(job: object) -> None:
    with pytest.raises(InvalidConfig, match="write a task of this DAG that submits a checkpointed job, or a job id"):
        trigger(job)


def test_template_as_job_id_is_refused() -> None:
    with pytest.raises(InvalidName, match="is not a job id: write static"):
        trigger("{{ params.job }}")


def test_task_groups_and_mapped_tasks_of_another_kind_are_refused() -> None:
    with DAG("etl", schedule=None):
        with pytest.raises(NotSupportedYet, match="no group"):
            TriggerCheckpointOperator(task_id="a", job=TaskGroup("nightly"))
        mapped = SparkSubmitOperator.partial(task_id="m", application="job.py").expand(name=["a", "b"])
        with pytest.raises(InvalidConfig, match="write a task of this DAG that submits a checkpointed job"):
            TriggerCheckpointOperator(task_id="b", job=mapped)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("savepoint", r"write TriggerSavepointOperator  \["),
        ("suspend_savepoint", r"write StopWithSavepointOperator  \["),
        ("terminate_savepoint", r"write StopWithSavepointOperator  \["),
        ("snapshot", "write one of 'checkpoint', 'full_checkpoint'"),
    ],
)
def test_kinds_that_are_no_checkpoint_are_refused(kind: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        trigger(kind=kind)


@pytest.mark.parametrize("name", ["gated", "confirm_commits"])
@pytest.mark.parametrize("value", ["no", 1, None])
def test_flag_that_is_neither_true_nor_false_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=f"{name}=.*: write True or False"):
        trigger(**{name: value})


def test_gated_with_wait_for_completion_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="gated=True with wait_for_completion=True"):
        trigger(gated=True, wait_for_completion=True)


@pytest.mark.parametrize("name", ["timeout", "start_timeout"])
def test_invalid_duration_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name}='soon'"):
        trigger(**{name: "soon"})


def test_submit_task_of_another_dag_is_refused() -> None:
    with DAG("etl", schedule=None):
        other = submits()
    with pytest.raises(InvalidConfig, match="of DAG 'etl'"):
        trigger(other)
