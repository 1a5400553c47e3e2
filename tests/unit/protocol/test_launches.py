"""Launches: the order of runs, names, several applications of one history, and scripts. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.events import Point
from tests.support.histories import Given, History, at, clear, described, launch, refusal, start, token

LATER = "2026-11-21T00:00:00Z"
KEEPS_ALL = CheckpointConfig(retention=KeepAll()).to_json()

# -- the order of runs ---------------------------------------------------------------------------------------------------


def day(history: History, run: str, **other: Any) -> None:
    history.started(run, **other)
    history.completed()
    history.ended()


def test_newest_script_goes_on_whatever_its_clock_says() -> None:
    history = History()
    plan = launch("alone-1", alone=True, started_at=LATER)
    history.do(c.StartAlone(plan=plan, start=start("alone-1")))
    history.ended()
    earlier = launch("alone-2", alone=True, started_at="2026-11-19T00:00:00Z")
    assert (
        described(history.ask(c.StartAlone(plan=earlier, start=start("alone-2"))))
        == "launch 2 from nothing, attempt 2 from nothing"
    )


def test_older_run_of_a_history_that_runs_share_by_a_key_is_refused() -> None:
    history = History(scope="DE")
    day(history, "day-2")
    refusal(history.ask(launch("day-1", scope="DE")), errors.RunIsOlder)
    assert described(history.ask(launch("day-3", scope="DE"))) == "launch 2 from chk-1"


def test_run_without_date_is_ordered_by_its_first_start() -> None:
    """A retry does not move its run to a later place."""
    history = History()
    history.started("by hand")
    history.ended("failed")
    day(history, "day-21")
    error = refusal(history.ask(launch("by hand", 2, started_at="2026-11-30T00:00:00Z")), errors.RunIsOlder)
    assert error.about["newer"] == ["day-21"]
    other = refusal(history.ask(launch("another by hand")), errors.RunIsOlder)
    assert "run another by hand is older than the runs in the state (day-21)" in other.message


@pytest.fixture
def three_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep three runs, launches, attempts and checkpoints instead of 100."""
    monkeypatch.setattr("airflow_checkpoint_provider.protocol.updates.KEPT_RECORDS", 3)


@pytest.mark.usefixtures("three_listed")
def test_run_no_longer_listed_counts_as_older() -> None:
    """The state keeps the latest ``run_after`` of dropped runs inside the branch."""
    history = History()
    history.started("nothing came of it", run_after="2025-12-31T00:00:00Z")
    history.ended("failed")
    for number in range(4):
        day(history, f"run {number}", run_after=f"2026-01-01T00:00:00Z+{number:04d}")
    assert history.state.run("run 0") is None
    assert history.state.run("run 1") is not None
    assert history.state.evicted_run_after == "2026-01-01T00:00:00Z+0000"
    again = launch("run 0", 2, run_after="2026-01-01T00:00:00Z+0000")
    assert refusal(history.ask(again), errors.RunIsOlder).about["newer"] == ["run 1", "run 2", "run 3"]
    history.state = replace(history.state, runs=())
    assert "(runs no longer listed)" in refusal(history.ask(again), errors.RunIsOlder).message


@pytest.mark.usefixtures("three_listed")
def test_all_runs_may_be_computed_again_after_a_restore_from_nothing() -> None:
    history = History()
    for number in range(7):
        day(history, f"run {number}", run_after=f"2026-01-01T00:00:00Z+{number:04d}")
    old = max(checkpoint.id for checkpoint in history.state.retained)
    history.do(c.Restore(token=token("later", task="anew"), base=None, by="ops", reason="wrong prices"))
    for number in range(7):
        day(history, f"again {number}", run_after=f"2026-01-01T00:00:00Z+{number:04d}")
    refusal(history.ask(launch("again 0", 2, run_after="2026-01-01T00:00:00Z+0000")), errors.RunIsOlder)
    history.do(c.Restore(token=token("later", task="back"), base=Point(id=old), by="ops", reason="they were right"))
    refusal(history.ask(launch("run 0", 2, run_after="2026-01-01T00:00:00Z+0000")), errors.RunIsOlder)


def test_second_run_of_the_same_moment_is_not_newer() -> None:
    history = History()
    day(history, "day-2")
    same = launch("the same day", run_after="2026-11-02T00:00:00Z")
    assert refusal(history.ask(same), errors.RunIsOlder).about["newer"] == ["day-2"]


def test_run_beside_a_living_one_is_told_how_that_ends_also_without_its_task() -> None:
    history = History()
    history.started()
    said = refusal(history.ask(launch("day-2", seen_alive=True)), errors.JobAlreadyRunning).message
    task = history.state.launches[0].spec.token
    assert f"mark its task {task.dag}.{task.task} as failed" in said
    assert "clear it, or type `airflow checkpoints stop " in said
    alone = History()
    plan = launch("day-1", alone=True)
    alone.do(replace(plan, spec=replace(plan.spec, token=replace(plan.spec.token, dag=""))))
    said = refusal(alone.ask(launch("day-2", alone=True, seen_alive=True)), errors.JobAlreadyRunning).message
    assert "mark its task" not in said
    assert "Wait for it, or `checkpoints stop " in said


# -- repeated launches ---------------------------------------------------------------------------------------------------


def test_rescheduled_task_launches_from_the_restore_that_resumed_the_job() -> None:
    """The try is the same: the task was rescheduled, not retried."""
    history = History()
    history.started()
    history.completed()
    history.ended("suspended")
    history.suspended()
    refusal(history.ask(launch()), errors.JobSuspended)
    history.do(c.Restore(token=token("later", task="resume"), base=Point(id=1), by="ops", reason="go on"))
    assert described(history.ask(launch())) == "launch 2 from chk-1"


@pytest.mark.parametrize(
    ("given", "asks", "error", "about"),
    [
        (lambda h: h.started(), launch(), errors.Superseded, {"run": "day-1"}),
        (lambda h: (h.launched(), h.launched(try_number=2)), launch(), errors.Superseded, {"run": "day-1"}),
        (lambda h: day(h, "day-1"), launch(try_number=2), errors.AlreadyFinished, {"run": "day-1"}),
        (
            lambda h: h.started(), launch("day-2", seen_alive=True), errors.JobAlreadyRunning,
            {"run": "day-1", "launch": 1},
        ),
    ],
    ids=["its driver was there", "a later try", "finished", "another run lives"],
)  # fmt: skip
def test_refused_launch_names_the_run(
    given: Given, asks: c.PlanLaunch, error: type[errors.Refused], about: dict[str, Any]
) -> None:
    history = History()
    given(history)
    assert refusal(history.ask(asks), error).about == about


def test_history_records_its_opener() -> None:
    opened = History().do(launch())[0]
    assert isinstance(opened, e.HistoryOpened)
    assert opened.by == launch().spec.owner


def test_on_clear_continue_needs_state_only_for_a_finished_run() -> None:
    history = History()
    history.started()
    history.ended("failed")
    assert described(history.ask(clear(on_clear="continue"))) == "launch 2 from nothing"
    history = History(scope="day-1")
    day(history, "day-1")
    history.condemned(1)
    refusal(history.ask(clear(on_clear="continue", scope="day-1")), errors.StateRequired)


# -- several applications of one history -----------------------------------------------------------------------------------


def test_applications_of_a_history_are_launched_and_restored_apart() -> None:
    """Each application has its own launch and attempts; only a checkpoint of both ends with either."""
    history = History()
    for name in ("orders", "stock"):
        history.do(launch(task=name, application=name, owner="both"))
        history.do(replace(start(driver=name), token=token(task=name), application=name))
    for name in ("orders", "stock"):
        history.do(
            c.Trigger(request=e.Request(token=name, application=name, gated=True), epoch=1 if name == "orders" else 2)
        )
    assert described(history.ask(launch(try_number=2, task="stock", application="stock", owner="both"))) == (
        "launch 3 from nothing, abort chk-2"
    )
    assert history.state.running("orders")
    running = history.state.running("stock")
    assert running
    assert (running.epoch, history.state.over(1), history.state.over(2)) == (2, False, False)
    history.do(
        c.Complete(id=1, digest="d", metadata_bytes=9, bytes=0, states=(), acknowledged=("orders",), finalize=True)
    )
    assert (history.state.restore_point("orders"), history.state.restore_point("stock")) == (Point(id=1), None)


def test_checkpoint_aborted_with_its_attempt_names_missing_applications() -> None:
    history = History()
    history.started()
    history.triggered()
    aborted = history.do(launch(try_number=2))[-1]
    assert isinstance(aborted, e.CheckpointAborted)
    assert (aborted.missing, aborted.phase) == (("",), "acknowledge")


# -- scripts -------------------------------------------------------------------------------------------------------------


def test_script_that_was_replaced_is_fenced_when_it_asks_again() -> None:
    """The answer to its entry was lost, and another script took over before it asked again."""
    history = History()
    command = c.StartAlone(plan=launch("alone-1", alone=True), start=start("alone-1", driver="first"))
    history.do(command)
    history.do(c.StartAlone(plan=launch("alone-1", 2, alone=True), start=start("alone-1", 2, driver="another")))
    refusal(history.ask(command), errors.Fenced)


# -- a history of one key --------------------------------------------------------------------------------------------------

SAVEPOINT = "s3://lake/savepoints/savepoint-orders-41-9f3c"


def went_back(history: History, base: Point | None, task: str = "back", **other: Any) -> None:
    history.do(c.Restore(token=token("later", task=task), base=base, by="ops", reason="go back", **other))


def test_next_run_starts_from_a_restore_after_the_last_run() -> None:
    history = History(scope="acme")
    day(history, "day-1")
    went_back(history, Point(id=1))
    assert described(history.ask(launch("day-2", scope="acme"))) == "launch 2 from chk-1"


def test_next_run_starts_from_a_base_kept_by_age() -> None:
    history = History(scope="acme")
    day(history, "day-1", checkpointing=KEEPS_ALL)
    went_back(history, Point(id=1))
    history.started("day-2", checkpointing=KEEPS_ALL)
    history.ended()
    assert described(history.ask(launch("day-3", scope="acme"))) == "launch 3 from chk-1"


@pytest.mark.parametrize("base", [Point(id=1), Point(pointer=SAVEPOINT)], ids=["own", "claimed"])
def test_base_of_a_restore_is_held_after_the_newest_run_finished(base: Point) -> None:
    history = History(scope="day-1")
    day(history, "day-1")
    went_back(history, base, claimed=bool(base.pointer))
    asks = c.Condemn(ids=(1,) if base.id else (), claims=(SAVEPOINT,) if base.pointer else (), now=at(60))
    refusal(history.ask(asks), errors.Held)
    assert described(history.ask(clear("day-1", scope="day-1"))) == f"launch 2 from {base}"


def test_clear_is_refused_if_its_base_is_being_deleted() -> None:
    history = History(scope="day-2")
    history.launched("day-2")
    went_back(history, Point(pointer=SAVEPOINT), claimed=True)
    history.started("day-2", 2)
    history.completed()
    history.ended()
    history.do(c.Condemn(ids=(1,), claims=(SAVEPOINT,), now=at(60)))
    error = refusal(history.ask(clear("day-2", 3, scope="day-2", on_clear="continue")), errors.StateRequired)
    assert f"{SAVEPOINT} is being deleted" in error.message


@pytest.mark.parametrize("base", [None, Point(pointer=SAVEPOINT)], ids=["own", "claimed"])
def test_late_driver_is_refused_after_its_restore_point_was_deleted(base: Point | None) -> None:
    """The driver waited in the queue of the cluster longer than the state of a failed run is kept."""
    history = History(scope="day-1")
    history.started()
    history.completed()
    history.ended("failed")
    if base:
        went_back(history, base, claimed=True)
    history.launched(try_number=2)
    claims = (SAVEPOINT,) if base else ()
    history.do(c.Condemn(ids=(1,), claims=claims, now=at(30 * 24 * 60)))
    refusal(history.ask(start(try_number=2)), errors.StateRequired)


def test_end_of_an_attempt_or_a_launch_takes_known_words_only() -> None:
    for end in (partial(c.EndAttempt, epoch=1), partial(c.EndLaunch, launch=1, try_number=1)):
        with pytest.raises(errors.InvalidConfig, match="outcome='done': write one of 'finished', 'failed'"):
            end(outcome="done")
