"""What a try decides before it submits: where it starts, whom it follows, whom it waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_checkpoint_provider.coordinator.closing import close
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.errors import AlreadyFinished, Damaged, Fenced, HistoryGone, TwoOwners
from airflow_checkpoint_provider.hooks.driver_monitor import follow
from airflow_checkpoint_provider.operators._base import has_launched
from airflow_checkpoint_provider.operators._launched import EarlierHistory
from airflow_checkpoint_provider.protocol.commands import CloseHistory, PlanLaunch, Restore
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point, Request
from airflow_checkpoint_provider.protocol.lifetime import FINISHED
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.storage.base import Listed
from airflow_checkpoint_provider.text.units import day_and_time
from tests.support.beats import CLOCKS_OFF, beating, put_beat
from tests.support.faults import Fault, FaultyStore
from tests.support.garbage import retire
from tests.support.recorded import RUN, Recorded, at, second_attempt
from tests.support.saved import memory
from tests.unit.operators.submissions import TaskInstance
from tests.unit.operators.tries import BEATS, DEAD, Try


@pytest.fixture
def driver(recorded: Recorded) -> Heart:
    """The heart of the driver that has not ended: this process."""
    return Heart(recorded.store, recorded.keys.attempt_beat(1), Beat(epoch=1, activity="stage 'delays'"), BEATS)


def damage(recorded: Recorded) -> None:
    """Of the newest completed checkpoint a file is missing."""
    (file_set,) = recorded.store.folders(f"{recorded.keys.prefix}/state/planes")
    recorded.store.delete([f"{recorded.keys.prefix}/state/planes/{file_set}/part-0.parquet"])


def test_plan_refuses_a_damaged_restore_point_and_writes_nothing(recorded: Recorded) -> None:
    damage(recorded)
    before = recorded.state.n
    with pytest.raises(Damaged, match="chk-2 is the next older one"):
        Try(recorded, 2, beats=DEAD).launch.plan()
    assert recorded.coordinator.journal.catch_up().n == before


def test_clear_that_restarts_ignores_a_damaged_restore_point(recorded: Recorded) -> None:
    damage(recorded)
    launch = Try(recorded, 2, generation=1, beats=DEAD, on_clear="restart").launch.plan()
    assert launch.restore_point is None


def test_clear_of_a_finished_run_does_not_verify_its_old_checkpoints(recorded: Recorded) -> None:
    second_attempt(recorded)
    damage(recorded)
    again = Try(recorded, 3, generation=1)
    assert again.launch.plan().restore_point is None
    assert "CHOSEN" not in "\n".join(again.lines)


def test_living_driver_is_adopted_although_its_checkpoint_is_damaged(recorded: Recorded, driver: Heart) -> None:
    damage(recorded)
    driver.pulse()
    adopting = Try(recorded, 2)
    launch = adopting.launch.plan()
    assert adopting.launch.adopted
    assert (launch.number, launch.adopted_by) == (1, 2)
    assert "stage 'delays'" in adopting.lines[0]
    assert "[CKP110]" in adopting.lines[0]


def test_living_driver_is_adopted_by_a_dag_run_that_was_made_again(recorded: Recorded, driver: Heart) -> None:
    """Its first try has the number of the try that started the driver."""
    driver.pulse()
    again = Try(recorded, 1, generation=1)
    again.launch.plan()
    assert again.launch.adopted


def test_task_of_another_dag_takes_no_part_in_a_launch_of_the_same_text() -> None:
    """Task ``load`` of DAG ``etl.daily`` has launched. Task ``daily.load`` of DAG ``etl`` has the same text in the journal."""
    recorded = Recorded(job="etl.daily.load")
    recorded.started("22:00:20")
    other = Try(recorded, 1).launch
    assert other.resume()
    other.parameters = replace(
        other.parameters, token=replace(other.parameters.token, dag="etl", task="daily.load", generation=7)
    )
    assert not other.resume()
    with pytest.raises(TwoOwners, match=r"tasks load of DAG etl\.daily and daily\.load of DAG etl share"):
        other.plan()
    owners = [("etl.daily", "load", True), ("etl", "daily.load", False), ("etl.daily.load", "", False)]
    for dag, task, launched in owners:
        ti = TaskInstance(dag_id=dag, task_id=task, run_id=RUN)
        assert has_launched(recorded.store, other.parameters.history, ti) is launched


@CLOCKS_OFF
def test_living_driver_on_another_host_is_adopted_with_any_clock(recorded: Recorded, off: timedelta) -> None:
    with beating(recorded.store, recorded.keys.attempt_beat(1), off):
        assert Try(recorded, 2).launch.plan().adopted_by == 2


@CLOCKS_OFF
def test_dead_driver_on_another_host_is_replaced_with_any_clock(recorded: Recorded, off: timedelta) -> None:
    put_beat(recorded.store, recorded.keys.attempt_beat(1), off=off)
    assert Try(recorded, 2, beats=DEAD).launch.plan().number == 2


@CLOCKS_OFF
def test_follow_measures_silence_by_its_own_clock(recorded: Recorded, off: timedelta) -> None:
    key = recorded.keys.attempt_beat(1)
    with beating(recorded.store, key, off):
        adopting = Try(recorded, 2).launch
        adopting.beats = Beats(every=0.05, wait=1, still=0.3)
        adopting.plan()
        living = threading.Event()
        threading.Timer(0.6, living.set).start()
        assert follow(adopting, living, log_checkpoints=False, on_attach=print) is not None
    assert living.is_set()
    assert follow(adopting, threading.Event(), log_checkpoints=False, on_attach=print) is None


def test_follow_tells_the_number_of_each_attempt_that_attaches(recorded: Recorded) -> None:
    stop, attached = threading.Event(), []
    put_beat(recorded.store, recorded.keys.attempt_beat(1), attached_at="2026-11-20T22:01:00.000Z")

    def on_attach(attempt: int | None) -> None:
        attached.append(attempt)
        stop.set()

    launch = Try(recorded, 1).launch
    launch.record = launch.coordinator.journal.catch_up().current_launch()
    follow(launch, stop, log_checkpoints=False, on_attach=on_attach)
    assert attached == [1]


def test_follow_sees_a_driver_that_attached_and_ended_before_the_first_look(recorded: Recorded) -> None:
    put_beat(recorded.store, recorded.keys.attempt_beat(1), attached_at="2026-11-20T22:01:00.000Z", reused=("planes",))
    recorded.ended("02:52:30")
    submit_has_ended, attached = threading.Event(), list[int | None]()
    submit_has_ended.set()
    following = Try(recorded, 1)
    following.launch.record = following.launch.coordinator.journal.catch_up().current_launch()
    follow(following.launch, submit_has_ended, log_checkpoints=False, on_attach=attached.append)
    assert attached == [1]
    assert "reused planes" in "\n".join(following.lines)


def test_living_driver_is_replaced_if_not_durable(recorded: Recorded, driver: Heart) -> None:
    driver.pulse()
    replacing = Try(recorded, 2, durable=False)
    assert replacing.launch.plan().number == 2
    assert "is still running and is replaced" in replacing.lines[1]


def test_plan_waits_for_a_driver_that_was_told_to_stop(recorded: Recorded, driver: Heart) -> None:
    driver.pulse()
    recorded.told_to_stop("02:52:00")
    ends = threading.Timer(0.2, recorded.ended, ("02:52:30", "cancelled", 79))
    ends.start()
    waiting = Try(recorded, 2)
    assert waiting.launch.plan().number == 2
    ends.join()
    assert [line for line in waiting.lines if "waiting for it" in line] == [waiting.lines[0]]
    assert "was cancelled" in waiting.lines[2]


def test_driver_that_does_not_stop_is_replaced_and_logged_once(recorded: Recorded) -> None:
    recorded.launched("03:00:00", try_number=2)
    Heart(recorded.store, recorded.keys.launch_beat(2), Beat(launch=2), BEATS).pulse()  # and no driver attaches
    recorded.told_to_stop("03:00:30")
    waiting = Try(recorded, 3)
    assert waiting.launch.plan().number == 3
    assert sum("waiting for it" in line for line in waiting.lines) == 1


def test_plan_is_refused_if_the_history_was_deleted(recorded: Recorded) -> None:
    with pytest.raises(HistoryGone, match="not there any more") as error:
        Try(Recorded(), 2, earlier=EarlierHistory(recorded.state.incarnation)).launch.plan()
    assert "tab Storage of this task" in str(error.value)
    instance = f"dags/flights_etl/dagRuns/{RUN}/taskInstances/delays"
    assert f"$AIRFLOW/api/v2/{instance}/state-store/checkpoint_history`" in str(error.value)


def test_stop_request_of_a_killed_try_is_in_the_journal(recorded: Recorded, driver: Heart) -> None:
    driver.pulse()
    adopting = Try(recorded, 2)
    adopting.launch.plan()
    adopting.launch.request_stop("the task was killed")
    launch = recorded.coordinator.journal.catch_up().launch(1)
    assert launch is not None
    assert launch.stop == "flights_etl.delays: the task was killed"


def test_summary_is_one_line_if_the_store_does_not_answer() -> None:
    silent = threading.Event()
    store = FaultyStore(MemoryStore(), lambda _: Fault.LOST if silent.is_set() else Fault.NONE)
    first = Try(Recorded(store), 1)
    first.launch.plan()
    silent.set()
    (line,) = first.launch.summary()
    assert "no summary" in line


def test_end_of_a_launch_that_cannot_be_recorded_raises_nothing() -> None:
    """A script that opened no job and ended well must not run again for it."""
    store = FaultyStore(MemoryStore())
    first = Try(Recorded(store), 1)
    first.launch.plan()
    store.plan = lambda call: Fault.NOT_SENT if call.kind == "create" else Fault.NONE
    first.launch.coordinator.journal.patience = 0.1
    first.launch.record_end("finished", 0)
    assert first.launch.attempt() is None
    assert (record := first.launch.state.current_launch())
    assert record.outcome is None


def test_dag_run_recreated_with_the_same_id_does_not_run_again(recorded: Recorded) -> None:
    """Its first try asks with the token of the launch that finished: it must not submit a driver for that."""
    recorded.ended("03:00:00", "finished", 0)
    made_again = Try(recorded, 1)
    with pytest.raises(AlreadyFinished):
        made_again.launch.plan()
    assert made_again.launch.state.launches[-1].number == 1


def test_launch_ended_by_a_restore_is_retried(recorded: Recorded) -> None:
    """Its driver ends with 79; the next try starts where the restore says."""
    recorded.ended("02:51:00", "failed", 137, "task")
    second = Try(recorded, 2)
    second.launch.plan()
    asks = recorded.token(RUN)
    recorded.clock = at("03:05:00")
    recorded.coordinator.journal.append(
        Restore(token=replace(asks, task="restore"), base=Point(id=2), by="a person", reason="chk-3 is wrong")
    )
    with pytest.raises(Fenced, match=r"a restore .*chk-3 is wrong.* The next try starts from chk-2") as left:
        second.launch.raise_if_replaced()
    assert not left.value.permanent
    launch = Try(recorded, 3).launch.plan()
    assert str(launch.restore_point) == "chk-2"


def test_success_deletes_leftovers_of_an_aborted_savepoint(recorded: Recorded) -> None:
    target = memory()
    number = recorded.coordinator.trigger(Request(token="one", kind="savepoint", origin="task", folder=target.uri))
    aborted = recorded.state.checkpoint(number)
    assert aborted
    target.create(f"{target_of(aborted).name}/state/clean/1-n0nce/part-0", b"rows")
    recorded.coordinator.abort(number, "expired")
    recorded.ended("03:00:00")
    assert Try(recorded, 1).launch.collect_garbage()
    assert target.objects == {}


# -- older runs ----------------------------------------------------------------------------------------------------------


def test_older_run_is_closed_and_logged_in_one_line(recorded: Recorded) -> None:
    recorded.ended("03:00:00", "failed", 1)
    older = Recorded(recorded.store, scope="scheduled__2025-01-01")
    older.clock = "2025-01-01T00:00:00.000Z"
    plan = PlanLaunch(
        spec=LaunchSpec(
            token=older.token(),
            try_number=1,
            owner="flights_etl.delays",
            run=older.scope,
            run_after=None,
            started_at=older.clock,
        ),
        incarnation="0ther",
        job=older.job,
        scope=older.scope,
    )
    older.coordinator.journal.append(plan)
    retry = Try(recorded, 2)
    retry.launch.collect_older_runs(threading.Event())
    assert retry.lines == ["flights_etl.delays, older runs: closed scheduled__2025-01-01  [CKP114]"]
    assert older.coordinator.journal.catch_up().closed
    retry.launch.collect_older_runs(threading.Event())
    assert len(retry.lines) == 1
    assert recorded.coordinator.journal.catch_up().retained


def test_cleanup_of_older_runs_logs_a_failing_store(recorded: Recorded) -> None:
    retry = Try(recorded, 2)
    retry.launch.store = FaultyStore(recorded.store, lambda call: Fault.DROPPED)
    retry.launch.collect_older_runs(threading.Event())
    (line,) = retry.lines
    assert "could not clean up any, the next run tries again" in line


def test_cleanup_of_older_runs_logs_an_error_that_nobody_has_foreseen(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a thread of its own, whose error nobody would see."""
    retry = Try(recorded, 2)

    def odd(prefix: str, after: str = "") -> Iterator[Listed]:
        raise ValueError("not a key")

    monkeypatch.setattr(recorded.store, "list", odd)
    retry.launch.collect_older_runs(threading.Event())
    (line,) = retry.lines
    assert "ValueError: not a key" in line


def test_clear_of_a_closed_history_starts_from_nothing_and_logs_why(recorded: Recorded) -> None:
    """Forty days later: its clear starts from nothing."""
    second_attempt(recorded)
    now = "2027-01-01T00:00:00.000Z"
    task = Coordinator(Journal(recorded.store, recorded.keys, By("task", "", "")))
    task.journal.catch_up()
    retire(task, now)
    close(task, CloseHistory(reason=FINISHED, now=now))
    clear = Try(recorded, 3, generation=1)
    launch = clear.launch.plan()
    assert (launch.number, launch.restore_point) == (3, None)
    assert (
        f"closed at {day_and_time(task.state.at)} (the run finished); its table was kept for 30 days" in clear.lines[0]
    )
    assert "starts from nothing" in clear.lines[-1]
