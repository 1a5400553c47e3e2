"""``CheckpointCompletedSensor(job=)`` waits for a number of checkpoints: which ones count, and since when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred
from airflow.triggers.base import TriggerEvent

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import InvalidConfig, StoreUnavailable
from airflow_checkpoint_provider.hooks.connections import NoConnection
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS
from airflow_checkpoint_provider.sensors import CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.triggers import checkpoint
from airflow_checkpoint_provider.triggers.checkpoint import ProgressTrigger
from tests.support.acting import RUN, Job
from tests.support.garbage import retire
from tests.support.tasks import OTHER, context, run, ti


def waits(job: Any = "orders", **options: Any) -> CheckpointCompletedSensor:
    with DAG(OTHER, schedule=None):
        return CheckpointCompletedSensor(
            **{"task_id": "healthy", "job": job, "poke_interval": 0.01, "timeout": 0, "deferrable": False, **options}
        )


def made(job: Job, many: int = 1) -> None:
    for _ in range(many):
        job.complete(job.coordinator.trigger(Request(token=f"barrier {job.state.next_id}")))


def saved(job: Job) -> None:
    ask = f"savepoint {job.state.next_id}"
    job.complete(
        job.coordinator.trigger(Request(token=ask, kind="savepoint", origin="user", folder=f"{job.store.uri}/theirs"))
    )
    publish_due(job.coordinator)


def aborted(job: Job) -> None:
    job.abort(job.coordinator.trigger(Request(token=f"barrier {job.state.next_id}")))


def began_anew(job: Job) -> None:
    """Launch the same run again."""
    job.end("failed")
    job.start(len(job.state.launches) + 1)


def went_back(job: Job) -> None:
    """Restore from chk-1, which opens a branch without a launch."""
    token = Token(dag="", run="by hand", task="restore")
    job.coordinator.journal.append(c.Restore(token=token, base=Point(id=1), by="ann", reason="again"))


Step = Callable[[Job], None]
SINCE: list[tuple[tuple[Step, ...], Any, list[int]]] = [
    ((made, made), None, [1, 2]),
    ((made, aborted, made), None, [1, 3]),
    ((made, saved, made), None, [1, 3]),
    ((made, began_anew), None, []),
    ((made, began_anew, made, made), None, [2, 3]),
    ((made, made, began_anew, made), 1, [2, 3]),
    ((made, made, made), "chk-1", [2, 3]),
    ((made, made, made), {"job": "orders", "scope": "", "id": 2, "pointer": "{uri}/jobs/orders/job/chk-2"}, [3]),
    ((saved, made, made), "{theirs}", [2, 3]),
    ((made, made, made), "{uri}/jobs/orders/job/chk-2", [3]),
    ((made, made, went_back), 0, []),
    ((made, made, went_back), None, []),
]


@pytest.mark.parametrize(("steps", "after", "counted"), SINCE)
def test_sensor_counts_checkpoints_since_after(
    job: Job, steps: tuple[Step, ...], after: Any, counted: list[int]
) -> None:
    for step in steps:
        step(job)
    savepoints = job.state.savepoints
    places = {"uri": job.store.uri, "theirs": savepoints[0].target if savepoints else ""}
    if isinstance(after, str):
        after = after.format(**places)
    elif isinstance(after, dict):
        after = {**after, "pointer": after["pointer"].format(**places)}
    if counted:
        assert run(waits(after=after, count=len(counted)))["id"] == counted[-1]
    with pytest.raises(AirflowSensorTimeout):
        run(waits(after=after, count=len(counted) + 1))


def test_deleted_checkpoints_count(job: Job) -> None:
    for _ in range(5):
        made(job)
        retire(job.coordinator, utc_now())
    assert len(job.state.retained) == 2
    assert run(waits(count=5))["id"] == 5


def test_sensor_returns_the_reference_of_the_newest_checkpoint(job: Job) -> None:
    made(job, 3)
    answer = run(waits(count=2))
    history = {"job": "orders", "scope": "", "incarnation": "of orders"}
    assert answer == {**history, "id": 3, "pointer": f"{job.store.uri}/jobs/orders/job/chk-3"}
    assert json.loads(json.dumps(answer)) == answer


def test_timeout_names_the_count_that_was_reached(job: Job) -> None:
    made(job)
    with pytest.raises(
        AirflowSensorTimeout, match="job 'orders' has completed 1 of 3 checkpoints in time; see timeout="
    ):
        run(waits(count=3))


def test_unknown_job_is_named_with_the_root_that_was_searched(store: Store) -> None:
    Job(store, scope=RUN).start()
    for name, mend in (("orders", "its runs have histories of their own"), ("ordrs", "check the job id")):
        with pytest.raises(
            AirflowSensorTimeout, match=f'no history of job .{name}. with scope="job" under {store.uri}; {mend}'
        ):
            run(waits(name))


def delays(store: Store) -> Job:
    """Return the job of a task of the same DAG; its run has finished with one checkpoint."""
    job = Job(store, f"{OTHER}.delays", RUN)
    job.start()
    made(job)
    job.end()
    return job


def waits_for_delays(**options: Any) -> CheckpointCompletedSensor:
    with DAG(OTHER, schedule=None):
        submits = CheckpointedSparkSubmitOperator(task_id="delays", application="job.py")
        return CheckpointCompletedSensor(
            **{
                "task_id": "healthy",
                "job": submits,
                "poke_interval": 0.01,
                "timeout": 0,
                "deferrable": False,
                **options,
            }
        )


def test_sensor_fails_at_once_if_the_run_has_finished(store: Store) -> None:
    delays(store)
    assert run(waits_for_delays())["id"] == 1
    with pytest.raises(AirflowFailException, match=rf"1 of 3 checkpoints: run {RUN} has finished.*CKP236"):
        run(waits_for_delays(count=3, timeout=600))


def test_sensor_cleared_with_its_finished_job_waits(store: Store) -> None:
    delays(store)
    with pytest.raises(AirflowSensorTimeout):
        run(waits_for_delays(count=3), max_tries=1)


def test_deferred_sensor_fails_when_the_run_finishes(store: Store) -> None:
    job = Job(store, f"{OTHER}.delays", RUN)
    job.start()
    options: dict[str, Any] = {"deferrable": True, "timeout": 600}
    waiting = deferred(waits_for_delays(**options))
    job.end()
    event = fired(waiting).payload
    resumed = waits_for_delays(**options)
    with pytest.raises(AirflowFailException, match="has finished"):
        resumed.execute_complete(context(resumed), event)


def test_submit_task_as_job_means_its_job_in_this_run(store: Store) -> None:
    job = Job(store, f"{OTHER}.delays", RUN)
    job.start()
    made(job)
    with DAG(OTHER, schedule=None):
        submits = CheckpointedSparkSubmitOperator(task_id="delays", application="job.py")
        sensor = CheckpointCompletedSensor(task_id="healthy", job=submits, timeout=0, deferrable=False)
    assert sensor.upstream_task_ids == set()
    assert run(sensor)["scope"] == RUN


def test_sensor_waits_for_a_job_that_has_not_begun(store: Store) -> None:
    with pytest.raises(AirflowSensorTimeout):
        run(waits())


def test_after_is_a_template() -> None:
    sensor = waits(after="{{ params.after }}")
    sensor.render_template_fields({"params": {"after": "chk-7"}})
    assert sensor.after == "chk-7"


# -- deferred --------------------------------------------------------------------------------------------------------------


def deferred(sensor: CheckpointCompletedSensor) -> ProgressTrigger:
    """Return the trigger as the triggerer builds it: from stored text, in another process."""
    with pytest.raises(TaskDeferred) as stopped:
        run(sensor)
    path, arguments = stopped.value.trigger.serialize()
    assert path == "airflow_checkpoint_provider.triggers.checkpoint.ProgressTrigger"
    return ProgressTrigger(**json.loads(json.dumps(arguments)))


def fired(trigger: ProgressTrigger) -> TriggerEvent:
    async def first() -> TriggerEvent:
        return await anext(trigger.run())

    return asyncio.run(asyncio.wait_for(first(), 30))


def test_sensor_polls_once_before_it_defers(job: Job) -> None:
    made(job)
    assert run(waits(deferrable=True))["id"] == 1


@pytest.mark.parametrize("after", [None, 1])
def test_deferred_sensor_polls_again_when_it_resumes(job: Job, after: int | None) -> None:
    made(job)
    options: dict[str, Any] = {"deferrable": True, "timeout": 600, "count": 2, "after": after}
    waiting = deferred(waits(**options))
    made(job, 2)
    event = fired(waiting).payload
    assert waits(**options).execute_complete({"ti": ti("healthy")}, event)["id"] == 3


def test_sensor_defers_again_with_the_same_deadline_if_resumed_too_early(job: Job) -> None:
    waiting = deferred(waits(deferrable=True, timeout=600))
    with pytest.raises(TaskDeferred) as again:
        waits(deferrable=True, timeout=600).execute_complete({"ti": ti("healthy")}, {"deadline": waiting.deadline})
    assert again.value.trigger.serialize() == waiting.serialize()


def test_deferred_sensor_times_out_at_its_deadline(job: Job) -> None:
    trigger = deferred(waits(deferrable=True, timeout=600, count=3))
    # Time has passed; a short time-out could end before the sensor defers.
    trigger.deadline = "2026-11-20T00:00:00+00:00"
    event = fired(trigger).payload
    with pytest.raises(AirflowSensorTimeout, match="job 'orders' has completed 0 of 3 checkpoints in time"):
        waits(deferrable=True, count=3).execute_complete({"ti": ti("healthy")}, event)


@pytest.mark.parametrize("named", [False, True])
def test_trigger_waits_without_a_connection_for_the_folder_of_the_first_launch(
    monkeypatch: pytest.MonkeyPatch, job: Job, named: bool
) -> None:
    """The resumed task would only be deferred again. If a person named the connection, it fails instead."""
    looks = list[bool]()

    def condition() -> bool:
        looks.append(len(looks) == 2)
        if not looks[-1]:
            raise NoConnection("there is no such connection", named=named)
        return True

    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)
    waiting = deferred(waits(deferrable=True, timeout=600))
    monkeypatch.setattr(ProgressTrigger, "condition", lambda self: condition)
    fired(waiting)
    assert looks == ([False] if named else [False, False, True])


@pytest.fixture
def savepoint_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store fail twice while the sensor reads the savepoint that ``after`` names."""
    failures = [StoreUnavailable("503 slow down")] * 2

    def id_in(after: Any, history: Any, hook: Any) -> int:
        if failures:
            raise failures.pop()
        return 1

    monkeypatch.setattr("airflow_checkpoint_provider.sensors.checkpoint.id_in", id_in)


@pytest.mark.usefixtures("savepoint_cannot_be_read")
@pytest.mark.parametrize("deferrable", [False, True])
def test_timeout_is_told_before_the_savepoint_could_be_read(job: Job, deferrable: bool) -> None:
    with pytest.raises(AirflowSensorTimeout, match="the checkpoint storage could not be read in time; see timeout="):
        run(waits(after=f"{job.store.uri}/theirs", deferrable=deferrable))


@pytest.mark.usefixtures("savepoint_cannot_be_read")
def test_deferrable_sensor_reads_the_savepoint_again_before_it_defers(job: Job) -> None:
    """The trigger needs its id."""
    assert deferred(waits(after=f"{job.store.uri}/theirs", deferrable=True, timeout=600)).after == 1


# -- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True, None, KEPT_RECORDS + 1])
def test_invalid_count_is_refused(count: Any) -> None:
    with pytest.raises(InvalidConfig, match="count="):
        waits(count=count)


@pytest.mark.parametrize("after", [{}, True, ["chk-1"], "yesterday", "chk-"])
def test_value_of_after_that_is_no_checkpoint_is_refused(job: Job, after: Any) -> None:
    with pytest.raises(AirflowFailException):
        run(waits(after=after))


OTHERS: list[tuple[str, str | None, str | None]] = [
    ("orders_v1", None, None),
    ("orders", RUN, None),
    ("orders", None, "north"),
]


@pytest.mark.parametrize("form", ["output", "pointer"])
@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
@pytest.mark.parametrize(("name", "scope", "item"), OTHERS)
def test_checkpoint_of_another_history_is_refused(
    store: Store, job: Job, name: str, scope: str | None, item: str | None, kind: str, form: str
) -> None:
    """Its id may be higher than all ids here, so the sensor would wait for ever; or lower, so old checkpoints would count."""
    other = Job(store, name, scope, item)
    other.start()
    number = other.save() if kind == "savepoint" else other.take()
    pointer = other.checkpoint(number).target or str(other.coordinator.pointer(number))
    after = {"job": name, "scope": scope or "", **({"item": item} if item else {}), "id": number, "pointer": pointer}
    made(job, 2)
    with pytest.raises(AirflowFailException, match=rf"is chk-1 of {other.keys.prefix}, and .*leave after= out"):
        run(waits(after=after if form == "output" else pointer, timeout=600))


def test_checkpoint_of_another_store_is_refused(job: Job, tmp_path: Path) -> None:
    made(job, 2)
    pointer = f"file://{tmp_path}/elsewhere/jobs/orders/job/chk-1"
    for after in (pointer, {"job": "orders", "scope": "", "id": 1, "pointer": pointer}):
        with pytest.raises(AirflowFailException, match="but connection 'checkpoint_default' leads to"):
            run(waits(after=after, timeout=600))
