"""The trigger of a deferred task that launched a driver: what wakes the task, and what does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.liveness import (
    VARIABLE,
    Beat,
    Liveness,
    RefusedStart,
    beat_keys,
    read_beat,
)
from airflow_checkpoint_provider.errors import Refused
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.triggers import _unattached
from airflow_checkpoint_provider.triggers import launch as launch_trigger
from airflow_checkpoint_provider.triggers.launch import LaunchTrigger
from tests.support.acting import RUN, Job
from tests.support.beats import put_beat
from tests.support.faults import Fault, FaultyStore
from tests.support.resource_manager import resource_manager
from tests.support.waiting import wait_until

ARGUMENTS: dict[str, Any] = {
    "checkpoint_conn_id": "checkpoint_default",
    "job": "orders",
    "launch": 1,
    "try_number": 1,
    "deferred_at": "2026-11-20T02:14:00.000Z",
    "after": 0,
    "ask_after": 600.0,
    "spark_conn_id": "",
    "application": "",
    "xcom": False,
    "poll_interval": 0.01,
    "map_index": None,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.05")


def follows(job: Job, **other: Any) -> LaunchTrigger:
    """Return the trigger as the triggerer builds it: from stored arguments."""
    path, arguments = LaunchTrigger(**{"history": job.keys.prefix, **ARGUMENTS, **other}).serialize()
    assert path == "airflow_checkpoint_provider.triggers.launch.LaunchTrigger"
    return LaunchTrigger(**arguments)


def fired(*triggers: LaunchTrigger, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    """Return why each trigger fired. ``meanwhile`` is called once they follow."""

    async def all_events() -> list[str]:
        events = [asyncio.ensure_future(anext(trigger.run())) for trigger in triggers]
        await asyncio.to_thread(wait_until, lambda: all(trigger._monitor for trigger in triggers))
        await asyncio.to_thread(meanwhile)
        return [(await event).payload["why"] for event in events]

    return asyncio.run(asyncio.wait_for(all_events(), 60))


def test_two_triggers_follow_one_launch_and_change_nothing(job: Job) -> None:
    job.beat()
    before = job.state.n
    assert fired(follows(job), follows(job), meanwhile=job.end) == ["ended", "ended"]
    assert job.state.n == before + 1
    assert fired(follows(job)) == ["ended"], "one that starts later"


def test_checkpoints_are_logged_that_the_task_has_not_logged(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.beat()
    job.take()

    def works() -> None:
        job.take()
        job.end()

    fired(follows(job, after=1), meanwhile=works)
    log = capsys.readouterr().out
    assert "chk-2 completed" in log
    assert "chk-1 completed" not in log


@pytest.mark.parametrize("beats", [0, 1])
def test_silent_driver_wakes_the_task(job: Job, beats: int) -> None:
    for counter in range(beats):
        put_beat(job.store, job.keys.attempt_beat(1), counter)
    assert fired(follows(job)) == ["silent"]


def test_driver_that_dies_at_its_start_wakes_the_task(job: Job) -> None:
    job.plan(2)
    put_beat(job.store, job.keys.driver_beat(2))
    assert fired(follows(job, launch=2, try_number=2)) == ["silent"]


def test_refused_driver_wakes_the_task(job: Job) -> None:
    job.plan(2)
    refusal = RefusedStart(code="CKP607", text="boto3 is not there").to_json()
    put_beat(job.store, job.keys.driver_beat(2), refusal=refusal)
    assert fired(follows(job, launch=2, try_number=2)) == ["refused"]


def test_later_try_wakes_the_task(job: Job) -> None:
    job.beat()
    assert fired(follows(job), meanwhile=lambda: job.plan(2)) == ["replaced"]


def test_launch_that_another_map_index_follows_wakes_the_task(job: Job) -> None:
    """Its item has moved. The indexes count their tries each for itself."""
    job.beat()
    assert fired(follows(job, map_index=3, try_number=9)) == ["replaced"]


def test_launch_of_another_history_wakes_the_task(job: Job) -> None:
    assert fired(follows(job, launch=7)) == ["replaced"]


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.DENIED])
def test_journal_that_cannot_be_read_for_a_while_does_not_wake_the_task(
    job: Job, faulty: FaultyStore, fault: Fault
) -> None:
    job.beat()

    def disturb() -> None:
        until = faulty.requests["read"] + 10
        faulty.plan = lambda call: fault if call.nth <= until and call.kind == "read" else Fault.NONE
        wait_until(lambda: faulty.requests["read"] > until)
        job.end()

    assert fired(follows(job), meanwhile=disturb) == ["ended"]


def test_error_that_stays_wakes_the_task(monkeypatch: pytest.MonkeyPatch, job: Job, faulty: FaultyStore) -> None:
    """The task meets it, too, or finds that only the triggerer has it."""
    monkeypatch.setattr(launch_trigger, "PATIENCE", 0.05)

    def break_for_ever() -> None:
        faulty.plan = lambda call: Fault.MISCONFIGURED

    assert fired(follows(job), meanwhile=break_for_ever) == [""]


def test_without_a_sign_of_a_driver_the_task_asks(job: Job) -> None:
    job.plan(2)
    assert fired(follows(job, launch=2, try_number=2, ask_after=0.2)) == ["not attached"]


def test_task_sleeps_while_yarn_says_that_its_application_is_queued(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_unattached, "FIRST", 0.0)
    monkeypatch.setattr(_unattached, "EVERY", 0.01)
    job.plan(2)
    with resource_manager() as manager:
        extra = {"yarn_resourcemanager_webapp_address": manager.url}
        monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
        trigger = follows(
            job, launch=2, try_number=2, ask_after=0.5, spark_conn_id="yarn", application="application_1_2"
        )

        def ends() -> None:
            began = time.monotonic()
            wait_until(lambda: time.monotonic() - began > 3 * trigger.ask_after and len(manager.asked) > 3)
            manager.state = "KILLED"

        assert fired(trigger, meanwhile=ends) == ["not attached"]
    assert "the cluster manager says ACCEPTED of application_1_2  [CKP116]" in capsys.readouterr().out


def test_launch_lives_while_it_is_followed(job: Job) -> None:
    """Another run must not replace an application that is queued."""
    job.plan(2)
    keys = beat_keys(job.keys, job.state)

    found: list[bool] = []

    def look() -> None:
        found.append(Liveness(job.store).wait(keys, bound=60))
        job.attach()
        job.end()

    assert fired(follows(job, launch=2, try_number=2), meanwhile=look) == ["ended"]
    assert found == [True]
    kept = read_beat(job.store, job.keys.launch_beat(2)) or Beat()
    assert (kept.deferred_at, kept.process.lives()) == (ARGUMENTS["deferred_at"], None)
    assert not Liveness(job.store).wait([job.keys.launch_beat(2)]), "nobody follows any more"


def test_stored_arguments_hold_no_secret(job: Job) -> None:
    _, arguments = follows(job).serialize()
    assert set(arguments) == {*ARGUMENTS, "history"}


@pytest.mark.parametrize("ended_before", [False, True])
def test_xcom_of_the_launch_and_the_log_name_the_attempt(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended_before: bool
) -> None:
    """Also if the driver has attached and ended before the first look."""
    pushed: list[Any] = []
    monkeypatch.setattr(_airflow, "push_xcom", lambda *about: pushed.append(about))
    put_beat(job.store, job.keys.attempt_beat(1), attached_at="2026-11-20T02:14:00.000Z", reused=("clean",))
    if ended_before:
        job.end()
    fired(follows(job, xcom=True), meanwhile=lambda: None if ended_before else job.end())
    assert "reused clean" in capsys.readouterr().out
    ((dag, run, task, key, value, index),) = pushed
    assert (dag, run, task, key, index) == ("etl", RUN, "job", "launch", None)
    assert (value["job"], value["run"], value["attempt"], value["restored"]) == ("orders", RUN, 1, None)
    assert value["history"] == f"{job.store.uri}/{job.keys.prefix}"


# -- killed ----------------------------------------------------------------------------------------------------------------


def killed(trigger: LaunchTrigger, monkeypatch: pytest.MonkeyPatch, state: str | None) -> None:
    """Call ``on_kill`` when the task is in that state."""
    monkeypatch.setattr(_airflow, "task_state", lambda dag, run, task, index: state)
    trigger._task_instance = SimpleNamespace(dag_id="etl", run_id=RUN, task_id="job")
    asyncio.run(trigger.on_kill())


def test_instance_of_a_mapped_task_asks_for_its_own_state(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(_airflow, "task_state", lambda *about: asked.append(about))
    trigger = follows(job, map_index=3)
    trigger._task_instance = SimpleNamespace(dag_id="etl", run_id=RUN, task_id="job")
    asyncio.run(trigger.on_kill())
    assert asked == [("etl", RUN, "job", 3)]


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_driver_is_asked_to_stop_when_a_person_ends_the_task(
    job: Job, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    killed(follows(job), monkeypatch, state)
    stop = job.state.launches[0].stop
    assert stop is not None
    assert f"marked {state} while it was deferred" in stop
    killed(follows(job), monkeypatch, state)
    assert job.state.launches[0].stop == stop


def asked_by_airflow(trigger: LaunchTrigger, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Call ``on_kill`` when Airflow answers this about the states of tasks, by run."""

    def answers(**_: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", answers)
    trigger._task_instance = SimpleNamespace(dag_id="etl", run_id=RUN, task_id="job")
    asyncio.run(trigger.on_kill())


@pytest.mark.parametrize("answer", [{}, {RUN: {}}], ids=["run", "task"])
def test_driver_is_asked_to_stop_when_its_task_is_deleted(
    job: Job, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    asked_by_airflow(follows(job), monkeypatch, answer)
    assert "the task was deleted while it was deferred" in str(job.state.launches[0].stop)


@pytest.mark.parametrize(
    "answer", [{RUN: {"job": None}}, {RUN: {"job": "deferred"}}, RuntimeError("the database is down"), None]
)
def test_driver_goes_on_after_a_clear_and_without_an_answer(
    job: Job, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    with contextlib.suppress(RuntimeError, AttributeError):
        asked_by_airflow(follows(job), monkeypatch, answer)
    assert job.state.launches[0].stop is None


@pytest.mark.parametrize("state", ["deferred", "queued", "running", "up_for_retry", None])
def test_driver_goes_on_when_airflow_calls_for_another_reason(
    job: Job, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """A triggerer that was given up has slept; or the task was cleared, and its next try decides."""
    killed(follows(job), monkeypatch, state)
    assert job.state.launches[0].stop is None


def test_driver_goes_on_that_a_later_try_follows(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job.state.launches[0].spec
    plan = c.PlanLaunch(
        spec=replace(spec, try_number=2), job="orders", incarnation="", scope="", seen_alive=True, durable=True
    )
    job.coordinator.journal.append(plan)
    assert job.state.launches[0].adopted_by == 2
    with pytest.raises(Refused):
        killed(follows(job), monkeypatch, "failed")
    assert job.state.launches[0].stop is None
