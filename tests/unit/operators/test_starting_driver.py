"""Tasks that want a checkpoint of a job whose driver was launched and has not attached yet."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE, Process
from airflow_checkpoint_provider.errors import NotAttached, NotRunning
from airflow_checkpoint_provider.operators import StopWithSavepointOperator, TriggerSavepointOperator
from airflow_checkpoint_provider.operators._request import RequestOperator
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.sensors import CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.task_groups import CheckpointTaskGroup
from airflow_checkpoint_provider.triggers import checkpoint as triggers
from airflow_checkpoint_provider.triggers.checkpoint import ProgressTrigger
from tests.support.acting import RUN, Job
from tests.support.beats import ELSEWHERE
from tests.support.tasks import OTHER, obeys, run, soon, trigger

Meanwhile = Callable[[Callable[[], object]], None]
GONE = replace(Process.this(), start_ticks="another one's")
POLLS = 3  # after which something happens


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Return a function that lets something happen once a task has waited for some polls."""

    def happens(action: Callable[[], object]) -> None:
        polls, sleep = itertools.count(1), RequestOperator._sleep

        def slept(task: RequestOperator, at_most: float) -> None:
            sleep(task, at_most)
            if next(polls) == POLLS:
                action()

        monkeypatch.setattr(RequestOperator, "_sleep", slept)

    return happens


@pytest.fixture
def launched(store: Store, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose task is submitting its driver."""
    monkeypatch.setenv(VARIABLE, "0.05")
    job = Job(store)
    job.plan()
    job.beat_launch()
    return job


def savepoint(**options: Any) -> TriggerSavepointOperator:
    with DAG(OTHER, schedule=None):
        return TriggerSavepointOperator(task_id="savepoint", job="orders", poke_interval=0.01, **options)


def group(**options: Any) -> Any:
    with DAG(OTHER, schedule=None) as dag:
        CheckpointTaskGroup(job="orders", poke_interval=0.01, **options)
    return dag.get_task("checkpoint.trigger")


REQUESTS = [trigger, lambda **options: savepoint(wait_for_completion=False, **options), group]
requests = pytest.mark.parametrize("request_of", REQUESTS, ids=["trigger", "savepoint", "group"])


@requests
@pytest.mark.parametrize("start_timeout", [0, 0.001])
def test_request_waits_for_a_driver_that_is_starting(
    launched: Job,
    meanwhile: Meanwhile,
    request_of: Callable[..., Any],
    start_timeout: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """However long it takes: the job was started."""
    meanwhile(launched.attach)
    assert run(request_of(start_timeout=start_timeout))["id"] == 1
    said = [line for line in capsys.readouterr().out.splitlines() if "orders: launched " in line]
    assert len(said) == 1
    assert " by try 1, not attached yet; waiting for its driver" in said[0]


def test_stop_waits_for_a_driver_that_is_starting(launched: Job, meanwhile: Meanwhile) -> None:
    """If it said that there is nothing to stop, the old version would start a moment later."""
    stopping = list[threading.Thread]()

    def attaches() -> None:
        launched.attach()
        stopping.append(soon(obeys(launched)))

    meanwhile(attaches)
    with DAG(OTHER, schedule=None):
        stop = StopWithSavepointOperator(task_id="stop", job="orders", poke_interval=0.01)
    assert run(stop)["id"] == 1
    stopping[0].join()
    assert launched.state.suspended


def test_wait_is_logged_once_a_minute(
    launched: Job, meanwhile: Meanwhile, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "WARN_EVERY", 0)  # instead of a minute
    meanwhile(launched.attach)
    run(trigger())
    assert capsys.readouterr().out.count("not attached yet; waiting for its driver") == POLLS


@requests
@pytest.mark.parametrize("process", [GONE, ELSEWHERE], ids=["ended", "silent elsewhere"])
def test_wait_for_a_launch_that_is_dead_ends(launched: Job, request_of: Callable[..., Any], process: Process) -> None:
    """A launch elsewhere is dead once its heartbeat has stood still; one of this host at once."""
    launched.beat_launch(process)
    began = time.monotonic()
    with pytest.raises(NotAttached, match="if its task has ended, start the job again"):
        run(request_of())
    assert time.monotonic() - began < 20


def test_launch_without_a_heartbeat_is_dead(store: Store) -> None:
    Job(store).plan()
    with pytest.raises(NotAttached):
        run(trigger())


def test_start_timeout_begins_when_a_launch_is_dead(launched: Job, meanwhile: Meanwhile) -> None:
    """The next try of the job may launch another driver."""
    launched.beat_launch(GONE)
    meanwhile(lambda: launched.start(2))
    assert run(trigger(start_timeout=30))["id"] == 1


def test_driver_that_failed_before_it_attached_is_no_longer_waited_for(launched: Job, meanwhile: Meanwhile) -> None:
    failure = c.EndLaunch(launch=1, try_number=1, outcome="failed", exit_code=1)
    meanwhile(lambda: launched.coordinator.journal.append(failure))
    with pytest.raises(NotRunning) as refused:
        run(trigger())
    assert type(refused.value) is NotRunning


def test_launch_that_was_told_to_stop_is_not_waited_for(launched: Job) -> None:
    launched.coordinator.journal.append(c.RequestStop(launch=1, try_number=1, by="etl.job", reason="killed"))
    with pytest.raises(NotRunning) as refused:
        run(trigger())
    assert type(refused.value) is NotRunning


def test_launch_of_another_run_is_not_waited_for(launched: Job) -> None:
    with DAG(OTHER, schedule=None):
        asks = savepoint(run="another")
    with pytest.raises(NotRunning) as refused:
        run(asks)
    assert type(refused.value) is NotRunning


def test_execution_timeout_ends_the_wait_for_a_driver(launched: Job) -> None:
    with pytest.raises(NotAttached, match=r"orders: launched .* by try 1, not attached yet"):
        run(trigger(execution_timeout=timedelta(seconds=0.5)))


def test_unchanged_job_is_not_skipped_while_its_driver_starts(launched: Job, meanwhile: Meanwhile) -> None:
    """It may change something as soon as it has attached."""
    launched.attach()
    run(savepoint(wait_for_completion=False))
    launched.complete(1)
    launched.end("failed")
    with pytest.raises(AirflowSkipException):
        run(savepoint(), max_tries=1)
    launched.plan(2)
    launched.beat_launch()
    meanwhile(launched.attach)
    assert run(savepoint(wait_for_completion=False), max_tries=2)["id"] == 2


# -- waits for progress ------------------------------------------------------------------------------------------------------


def test_sensor_says_that_the_driver_is_starting(launched: Job, capsys: pytest.CaptureFixture[str]) -> None:
    with DAG(OTHER, schedule=None):
        healthy = CheckpointCompletedSensor(task_id="healthy", job="orders", poke_interval=0.01, timeout=0.1)
    with pytest.raises(AirflowSensorTimeout):
        run(healthy)
    assert capsys.readouterr().out.count("not attached yet; waiting for its driver") == 1


def test_trigger_in_the_triggerer_says_so_too(launched: Job, capsys: pytest.CaptureFixture[str]) -> None:
    def fires() -> list[Any]:
        deadline = (datetime.now(UTC) + timedelta(seconds=0.3)).isoformat()
        waits = ProgressTrigger(
            job="orders", key=None, item=None, run_key=RUN, after=None, count=1, checkpoint_conn_id="checkpoint_default",
            deadline=deadline, poll_interval=0.01,
        )  # fmt: skip

        async def events() -> list[Any]:
            return [event async for event in waits.run()]

        return asyncio.run(events())

    assert len(fires()) == 1
    assert capsys.readouterr().out.count("not attached yet; waiting for its driver") == 1
    launched.attach()
    launched.complete(launched.coordinator.trigger(Request(token="barrier")))
    assert len(fires()) == 1
    assert "not attached" not in capsys.readouterr().out
