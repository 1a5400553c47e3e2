"""``TriggerSavepointOperator``: target, owner, jobs that do not run, and disposal of older savepoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.coordinator.savepoint import dispose, publish_due, target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import InvalidConfig, NotRunning, SavepointDisposed, StoreMisconfigured
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import (
    AbortCheckpointOperator,
    StopWithSavepointOperator,
    TriggerSavepointOperator,
    savepoint,
)
from airflow_checkpoint_provider.operators.savepoint import SavepointRequestOperator
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.sensors import CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store, open_store
from tests.support.acting import RUN, Job
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.tasks import OTHER, kill_in, run, soon, ti, token_of


def asks(**options: Any) -> TriggerSavepointOperator:
    with DAG(OTHER, schedule=None):
        return TriggerSavepointOperator(
            **{"task_id": "savepoint", "job": "orders", "poke_interval": 0.01, "deferrable": False, **options}
        )


def taken(job: Job, map_index: int = -1, dag_id: str = OTHER, **options: Any) -> dict[str, Any]:
    """Run the task in a new run while a driver takes the savepoint; return the task's result."""
    number = job.state.next_id
    takes = soon(lambda: job.serve(number))
    try:
        answer: dict[str, Any] = run(asks(**options), run_id=f"hour {number}", map_index=map_index, dag_id=dag_id)
    finally:
        takes.join()
    return answer


# -- where it lies ---------------------------------------------------------------------------------------------------------


def test_savepoint_is_complete_at_its_target_when_the_task_succeeds(job: Job, tmp_path: Path) -> None:
    answer = taken(job, target=str(tmp_path / "saved"))
    (folder,) = (tmp_path / "saved").iterdir()
    assert folder.name.startswith("savepoint-orders-1-")
    history = {"job": "orders", "scope": "", "incarnation": "of orders"}
    assert answer == {**history, "id": 1, "pointer": f"file://{folder}"}
    assert json.loads(json.dumps(answer)) == answer
    assert open_savepoint(SavepointPointer.parse(answer["pointer"]), job.store).verify() == 2
    assert job.checkpoint(1).published


def test_savepoint_lies_below_the_root_without_a_target(job: Job) -> None:
    assert taken(job)["pointer"].startswith(f"{job.store.uri}/savepoints/savepoint-orders-1-")


@pytest.mark.parametrize("target", ["{root}", "{root}/", "file://{root}"])
def test_target_may_be_a_path_or_a_uri(job: Job, tmp_path: Path, target: str) -> None:
    answer = taken(job, target=target.format(root=tmp_path / "saved"))
    assert answer["pointer"].startswith(f"file://{tmp_path}/saved/savepoint-")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("hdfs://lake/savepoints", "checkpoints on hdfs are not supported"),
        ("savepoints", "target='savepoints': write an absolute path or a URI"),
        ("~/savepoints", "write an absolute path or a URI"),
    ],
)
def test_invalid_target_is_refused(job: Job, target: str, message: str) -> None:
    with pytest.raises((InvalidConfig, StoreMisconfigured), match=message):
        asks(target=target)
    task = asks(target="{{ params.target }}")
    task.render_template_fields({"params": {"target": target}})
    with pytest.raises(AirflowFailException, match=message):
        run(task)
    assert job.state.checkpoints == ()


@pytest.mark.parametrize("place", ["jobs/orders/job/chk-1", "savepoint"])
def test_target_inside_of_a_history_or_savepoint_is_refused(job: Job, tmp_path: Path, place: str) -> None:
    target = taken(job)["pointer"] if place == "savepoint" else f"{job.store.uri}/{place}"
    with pytest.raises(AirflowFailException, match="lies inside of the"):
        run(asks(target=f"{target}/mine"), run_id="another")
    assert job.state.pending == ()


def test_journal_records_owner_name_and_pin(job: Job) -> None:
    taken(job, name="before price change", pinned=True)
    found = job.checkpoint(1)
    assert (found.kind, found.request.name, found.request.pinned) == ("savepoint", "before price change", True)
    assert (found.request.origin, found.request.owner) == ("task", f"{OTHER}.savepoint")


def test_target_and_name_are_templates() -> None:
    task = asks(target="s3://lake/{{ ds }}", name="{{ run_id }}")
    task.render_template_fields({"ds": "2026-11-20", "run_id": RUN})
    assert (task.target, task.name) == ("s3://lake/2026-11-20", RUN)


def natively(verb: type[SavepointRequestOperator], given: object, **options: Any) -> SavepointRequestOperator:
    """Return a task whose template ``{{ given }}`` was rendered to what it names, and not to text."""
    with DAG(OTHER, schedule=None, render_template_as_native_obj=True):
        task = verb(task_id="savepoint", job="orders", execution_timeout=timedelta(seconds=1), **options)
    context: Any = {"given": given}
    task.render_template_fields(context)
    return task


@pytest.mark.parametrize("given", [20261129, 0, 7.5, True, ["a"], {"a": 1}], ids=str)
def test_name_that_is_rendered_to_no_text_fails_without_retry(job: Job, given: object) -> None:
    task = natively(TriggerSavepointOperator, given, name="{{ given }}")
    with pytest.raises(
        AirflowFailException, match=r"^name= is .* after its template was rendered.*put a letter before"
    ):
        run(task)
    assert job.state.checkpoints == ()


@pytest.mark.parametrize("given", [None, ""])
def test_name_that_is_rendered_to_nothing_is_none(job: Job, given: str | None) -> None:
    run(natively(TriggerSavepointOperator, given, name="{{ given }}", wait_for_completion=False))
    assert not job.checkpoint(1).request.name


@pytest.mark.parametrize("verb", [TriggerSavepointOperator, StopWithSavepointOperator])
@pytest.mark.parametrize("given", [None, "", 20261129, ["/shared"]], ids=str)
def test_target_that_is_rendered_to_no_place_means_no_other_place(
    job: Job, verb: type[SavepointRequestOperator], given: object
) -> None:
    task = natively(verb, given, target="{{ given }}")
    with pytest.raises(AirflowFailException, match=r"^target=.*: write an absolute path or a URI"):
        run(task)
    assert job.state.checkpoints == ()


@pytest.mark.parametrize("pinned", ["yes", 1, None])
def test_pin_that_is_neither_true_nor_false_is_refused(pinned: object) -> None:
    with pytest.raises(InvalidConfig, match=r"pinned=.*: write True or False"):
        asks(pinned=pinned)


@pytest.mark.parametrize("waits", [True, False])
def test_retry_fails_if_its_savepoint_was_disposed_of(job: Job, waits: bool) -> None:
    """The pointer of a deleted savepoint would fail only later, where a task restores it."""
    answer = taken(job)
    job.complete(
        job.coordinator.trigger(Request(token="barrier"))
    )  # the job need not start from the savepoint any more
    dispose(job.store, answer["pointer"], "ann@host", "2026-11-22T10:00:00Z")
    with pytest.raises(
        AirflowFailException, match=r"was disposed of at 2026-11-22T10:00:00Z by ann@host\. Clear this task"
    ):
        run(asks(wait_for_completion=waits), run_id="hour 1", try_number=2)
    assert job.state.pending == ()


def test_task_without_wait_returns_a_pending_savepoint(job: Job) -> None:
    answer = run(asks(wait_for_completion=False))
    assert answer["pointer"] == job.checkpoint(1).target
    assert job.checkpoint(1).status == "pending"


@pytest.fixture
def asked(job: Job) -> dict[str, Any]:
    """Return the XCom of a task that does not wait: its pointer names a directory that is still empty."""
    answer: dict[str, Any] = run(asks(wait_for_completion=False))
    return answer


def test_pending_savepoint_can_be_awaited_by_another_task(job: Job, asked: dict[str, Any]) -> None:
    with DAG(OTHER, schedule=None):
        waits = CheckpointCompletedSensor(task_id="waits", checkpoint=asked, deferrable=False, poke_interval=0.01)
    takes = soon(lambda: job.complete(1))
    assert run(waits) == asked
    takes.join()


def aborts(checkpoint: Any, **options: Any) -> AbortCheckpointOperator:
    with DAG(OTHER, schedule=None):
        return AbortCheckpointOperator(task_id="aborts", checkpoint=checkpoint, **options)


def test_pending_savepoint_can_be_aborted_by_its_reference(job: Job, asked: dict[str, Any]) -> None:
    assert run(aborts(asked)) == asked
    assert job.checkpoint(1).status == "aborted"


def test_pending_savepoint_can_be_aborted_by_the_pointer_in_the_log(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    run(asks(wait_for_completion=False))
    pointer = f"{job.store.uri}/{job.keys.checkpoint(1)}"
    assert f"Pointer for tasks: {pointer}" in capsys.readouterr().out
    run(aborts(pointer))
    assert job.checkpoint(1).status == "aborted"


def test_abort_with_another_root_is_refused(
    job: Job, asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "elsewhere")}}
    monkeypatch.setenv("AIRFLOW_CONN_ANOTHER", json.dumps(there))
    other = Job(open_store(str(tmp_path / "elsewhere")))
    other.start()
    other.coordinator.trigger(Request(token="barrier"))
    with pytest.raises(AirflowFailException, match="is another one; give this task the checkpoint_conn_id of the job"):
        run(aborts(asked, checkpoint_conn_id="another"))
    assert other.checkpoint(1).status == "pending"


# -- done twice ------------------------------------------------------------------------------------------------------------


def test_retry_returns_the_savepoint_of_the_earlier_try(job: Job) -> None:
    run(asks(wait_for_completion=False))
    job.complete(1)
    first = run(asks(), try_number=2)
    assert run(asks(), try_number=3) == first
    assert len(job.state.checkpoints) == 1


def test_aborted_savepoint_fails_the_try_and_a_retry_requests_another(job: Job) -> None:
    def declines() -> None:
        job.wait_asked(1)
        job.abort(1)

    aborts = soon(declines)
    with pytest.raises(AirflowException, match="was aborted: expired") as error:
        run(asks())
    aborts.join()
    assert not isinstance(error.value, AirflowFailException)
    takes = soon(lambda: job.serve(2))
    assert run(asks(), try_number=2)["id"] == 2
    takes.join()


def test_retry_publishes_the_savepoint_if_the_driver_died(job: Job) -> None:
    """The driver was killed after the entry of the completion and before it wrote ``_metadata`` at the target."""
    run(asks(wait_for_completion=False))
    job.complete(1)
    job.end("failed")
    answer = run(asks(), try_number=2)
    assert open_savepoint(SavepointPointer.parse(answer["pointer"]), job.store).verify() == 2


def test_deferred_task_resumes_when_the_savepoint_is_completed(job: Job) -> None:
    with pytest.raises(TaskDeferred) as stopped:
        run(asks(deferrable=True))
    arguments = stopped.value.trigger.serialize()[1]
    event = {"checkpoint": arguments["checkpoint"], "deadline": arguments["deadline"]}
    assert arguments["awaited"] == "completed"
    job.complete(1)
    answer = asks(deferrable=True).execute_complete({"ti": ti("savepoint")}, event)
    assert answer["pointer"] == job.checkpoint(1).target
    assert job.checkpoint(1).published


def test_task_publishes_later_if_the_store_fails_once_after_completion(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The savepoint is complete: a failed try would request nothing better."""
    faulty, failed = FaultyStore(job.store), list[Call]()

    def fail_first_read_of_the_seal(call: Call) -> Fault:
        if call.key != job.keys.seal(1) or failed:
            return Fault.NONE
        failed.append(call)
        return Fault.NOT_SENT

    faulty.plan = fail_first_read_of_the_seal
    monkeypatch.setattr(CheckpointStorageHook, "_connected", lambda _: faulty)
    answer = taken(job)
    assert [call.kind for call in failed] == ["read"]
    assert open_savepoint(SavepointPointer.parse(answer["pointer"]), job.store).verify() == 2
    assert "looking again in" in capsys.readouterr().out


# -- jobs that do not run --------------------------------------------------------------------------------------------------


def saved(job: Job) -> None:
    number = job.coordinator.trigger(
        Request(token="somebody", kind="savepoint", origin="user", folder=f"{job.store.uri}/theirs")
    )
    job.complete(number)


def went_on(job: Job) -> None:
    job.complete(job.coordinator.trigger(Request(token="barrier")))


def went_back(job: Job) -> None:
    """Restore from the beginning, which is no savepoint."""
    asks = job.state.launches[-1].spec.token
    job.coordinator.journal.append(c.Restore(token=asks, base=None, by="ann", reason="again"))


def went_to(pointer: str) -> Callable[[Job], None]:
    def went(job: Job) -> None:
        asks = job.state.launches[-1].spec.token
        base = Point(pointer=pointer)
        job.coordinator.journal.append(c.Restore(token=asks, base=base, by="ann", reason="theirs", id_floor=41))

    return went


def nothing(job: Job) -> None:
    """Do nothing: the job has just started."""


UNCHANGED: list[tuple[tuple[Callable[[Job], None], ...], bool]] = [
    ((saved,), True),
    ((went_on, saved), True),
    ((saved, went_on), False),
    ((went_on,), False),
    ((nothing,), False),
    ((saved, went_back), False),
    ((went_to("s3://their lake/theirs/savepoint-orders-41-9f3c"),), True),
    ((went_to("s3://their lake/jobs/payments/job/chk-41"),), False),
]


@pytest.mark.parametrize(("steps", "unchanged"), UNCHANGED, ids=lambda step: str(getattr(step, "__name__", "")))
def test_task_is_skipped_if_an_ended_job_has_not_changed(
    job: Job, steps: tuple[Callable[[Job], None], ...], unchanged: bool
) -> None:
    for step in steps:
        step(job)
    if not job.state.over(1):
        job.end("failed")
    before = job.state
    if unchanged:
        with pytest.raises(
            AirflowSkipException, match=r"nothing has changed since savepoint .*/theirs/savepoint-orders"
        ):
            run(asks())
        assert all(savepoint.published for savepoint in job.state.savepoints), "the task publishes what a driver left"
    else:
        with pytest.raises(NotRunning):
            run(asks())
        assert job.state == before


def streams(job: Job) -> None:
    """The query runs in the newest attempt: it goes on after the batches of the attempt before."""
    epoch, query = job.state.last_epoch, job.state.query("clicks")
    command = c.LocateQuery(
        epoch=epoch,
        uid="clicks",
        path=f"query/clicks/{epoch}-abc",
        taken_from=query.newest.path if query else None,
        begun=10 * epoch,
        committed=10 * epoch,
    )
    job.coordinator.journal.append(command)


def stopped(job: Job) -> None:
    asks = Request(token="stop", kind="suspend_savepoint", origin="user", folder=f"{job.store.uri}/theirs")
    job.complete(job.coordinator.trigger(asks))
    publish_due(job.coordinator)
    job.end("suspended")


def resumed(job: Job) -> None:
    base = Point(id=job.state.stops[-1].id)
    job.coordinator.journal.append(
        c.Restore(token=Token(dag="", run="by hand", task="ann"), base=base, by="ann", reason="")
    )


def went_back_to_stop(job: Job) -> None:
    """The restore takes the queries back, too."""
    base = Point(id=job.state.stops[-1].id)
    token = Token(dag="", run="by hand, later", task="ann")
    job.coordinator.journal.append(c.Restore(token=token, base=base, by="ann", reason="", rewind_queries=True))


def failed_later(job: Job) -> None:
    job.start(2)
    job.end("failed")


def streamed_later(job: Job) -> None:
    job.start(3)
    streams(job)
    job.end("failed")


STREAM: list[tuple[tuple[Callable[[Job], None], ...], bool]] = [
    ((streams, saved), False),
    ((saved, streams), False),
    ((streams, stopped), True),
    ((streams, stopped, resumed), True),
    ((streams, stopped, resumed, failed_later), True),
    ((streams, stopped, resumed, failed_later, streamed_later), False),
    ((streams, stopped, resumed, streamed_later, went_back_to_stop), True),
    ((streams, went_to("s3://their lake/theirs/savepoint-orders-41-9f3c")), False),
]


@pytest.mark.parametrize(("steps", "unchanged"), STREAM, ids=lambda step: str(getattr(step, "__name__", "")))
def test_task_is_skipped_only_if_no_query_has_run_on(
    job: Job, steps: tuple[Callable[[Job], None], ...], unchanged: bool
) -> None:
    """A query goes on after its newest batch, and not after that of the savepoint."""
    for step in steps:
        step(job)
    if not job.state.over(job.state.last_epoch):
        job.end("failed")
    if unchanged:
        with pytest.raises(AirflowSkipException, match="nothing has changed since savepoint"):
            run(asks())
    else:
        with pytest.raises(NotRunning, match=r"savepoint-orders-.*may lack the newest batches of query 'clicks'"):
            run(asks())


def test_ended_job_is_an_error_without_skip_if_unchanged(job: Job) -> None:
    saved(job)
    job.end("failed")
    with pytest.raises(NotRunning):
        run(asks(skip_if_unchanged=False))


def test_running_job_always_gets_a_savepoint(job: Job) -> None:
    saved(job)
    assert taken(job)["id"] == 2


def test_task_is_skipped_for_a_suspended_job_whose_attempt_has_not_ended(job: Job) -> None:
    """The journal says *suspended* a moment before the attempt ends."""
    job.complete(
        job.coordinator.trigger(
            Request(token="stop", kind="suspend_savepoint", origin="user", folder=f"{job.store.uri}/theirs")
        )
    )
    assert job.state.running()
    with pytest.raises(AirflowSkipException, match="nothing has changed"):
        run(asks())


def test_unchanged_job_is_waited_for_during_start_timeout(job: Job) -> None:
    """After a stop and a restore, say, the job may start again and change."""
    saved(job)
    job.end("failed")
    starts = soon(lambda: job.start(2))
    assert run(asks(start_timeout="30 s", wait_for_completion=False))["id"] == 2
    starts.join()


def test_unchanged_job_is_skipped_after_start_timeout(job: Job) -> None:
    saved(job)
    job.end("failed")
    with pytest.raises(AirflowSkipException, match="nothing has changed"):
        run(asks(start_timeout=0.2))


def test_task_waits_for_the_first_start_of_the_job(store: Store) -> None:
    job = Job(store)
    starts = soon(job.start)
    assert run(asks(start_timeout="30 s", wait_for_completion=False))["id"] == 1
    starts.join()


# -- older savepoints ------------------------------------------------------------------------------------------------------


def left(job: Job) -> list[int]:
    """Return the ids of the savepoints in the journal; assert that each is complete at its target."""
    there = [saved.id for saved in job.state.savepoints]
    for saved in job.state.savepoints:
        assert open_savepoint(target_of(saved), job.store).verify() == 2
    return there


def test_older_savepoints_are_disposed_of_by_the_retention_policy(job: Job) -> None:
    for _ in range(4):
        answer = taken(job, retention=KeepLatest(2))
    assert left(job) == [3, 4]
    assert answer["id"] == 4


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (KeepLatest(1), [4]),
        # one policy and two together show it; tests/unit/policies/test_retention.py has all of them
        pytest.param(KeepWithin(microseconds=1), [4], marks=pytest.mark.slow),  # the newest stays, however old it is
        pytest.param(KeepLatest(1) | KeepWithin(days=7), [1, 2, 3, 4], marks=pytest.mark.slow),
        (KeepLatest(2) & KeepWithin(days=7), [3, 4]),
        pytest.param(KeepAll(), [1, 2, 3, 4], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_retention_policy_keeps_its_savepoints(job: Job, policy: Any, kept: list[int]) -> None:
    for _ in range(3):
        taken(job)
    taken(job, retention=policy)
    assert left(job) == kept


def test_savepoints_of_others_and_pinned_savepoints_are_kept(job: Job) -> None:
    saved(job)
    publish_due(job.coordinator)
    taken(job, task_id="another")
    taken(job, pinned=True)
    taken(job)
    taken(job, retention=KeepLatest(1))
    assert left(job) == [1, 2, 3, 5]


def test_savepoints_of_another_dag_are_kept_though_its_task_has_the_same_text(job: Job) -> None:
    """Task ``daily.savepoint`` of DAG ``etl``, and task ``savepoint`` of DAG ``etl.daily``."""
    taken(job, dag_id="etl", task_id="daily.savepoint")
    for _ in range(2):
        taken(job, dag_id="etl.daily", task_id="savepoint", retention=KeepLatest(1))
    assert left(job) == [1, 3]


def test_instances_of_a_mapped_task_keep_savepoints_of_their_own(job: Job) -> None:
    for place in (0, 1, 0, 1):
        taken(job, place, retention=KeepLatest(1))
    assert left(job) == [3, 4]


def test_killed_disposal_is_finished_by_the_next_task(job: Job) -> None:
    for _ in range(2):
        taken(job)
    job.coordinator.journal.append(c.Condemn(ids=(1,), now="2026-11-20T00:00:00Z", disposing=True))
    assert job.checkpoint(1).status == CONDEMNED
    taken(job, retention=KeepLatest(5))
    assert job.checkpoint(1).status == "forgotten"
    with pytest.raises(SavepointDisposed):
        open_savepoint(target_of(job.checkpoint(1)), job.store)
    assert left(job) == [2, 3]


@pytest.mark.parametrize(
    ("step", "published"), [((CheckpointRequest, "resolve"), False), ((savepoint, "superfluous"), True)]
)
def test_killed_task_publishes_and_disposes_of_nothing_more(
    job: Job, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], published: bool
) -> None:
    taken(job)
    task = asks(retention=KeepLatest(1))
    kill_in(monkeypatch, task, *step)
    job.complete(
        job.coordinator.trigger(
            Request(
                token=token_of(task),
                kind="savepoint",
                origin="task",
                folder=f"{job.store.uri}/s",
                owner=f"{OTHER}.savepoint",
            )
        )
    )
    with pytest.raises(AirflowException, match="was killed"):
        run(task)
    assert job.checkpoint(2).published is published
    publish_due(job.coordinator)
    assert left(job) == [1, 2]


def test_failed_disposal_is_logged(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = taken(job, target=str(tmp_path / "saved"))
    pointer = SavepointPointer.parse(first["pointer"])
    (tmp_path / "saved" / pointer.name / "_claimed").write_text(
        json.dumps({"v": 1, "owner": "another", "by": "ann", "at": "2026-11-20T00:00:00Z"})
    )
    assert taken(job, retention=KeepLatest(1))["id"] == 2
    assert f"{pointer} was not disposed of" in capsys.readouterr().out
    assert left(job) == [1, 2]


# -- what is refused where it is written -----------------------------------------------------------------------------------


def test_value_that_is_no_retention_policy_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"write e\.g\. KeepLatest"):
        asks(retention=7)


def test_retention_without_wait_for_completion_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="needs wait_for_completion=True"):
        asks(retention=KeepLatest(2), wait_for_completion=False)
