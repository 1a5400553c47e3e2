"""What a launch says besides who may start: places in the order of runs, names, applications of one history, scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.checkpoint import commands as c
from airflow_checkpoint_provider.checkpoint import errors
from airflow_checkpoint_provider.checkpoint import events as e
from airflow_checkpoint_provider.checkpoint.errors import CheckpointError
from airflow_checkpoint_provider.checkpoint.events import Point
from airflow_checkpoint_provider.checkpoint.launching import renamed_on
from airflow_checkpoint_provider.checkpoint.state import Branch, State
from tests.unit.checkpoint.histories import Given, History, clear, launch, refusal, said, start, token

LATER = "2026-11-21T00:00:00Z"

# -- the order of runs ---------------------------------------------------------------------------------------------------


def day(history: History, run: str, **other: Any) -> None:
    history.started(run, **other)
    history.completed()
    history.ended()


def test_a_script_is_the_newest_whatever_clocks_say() -> None:
    history = History()
    plan = launch("alone-1", alone=True, started_at=LATER)
    history.do(c.StartAlone(plan=plan, start=start("alone-1")))
    history.ended()
    earlier = launch("alone-2", alone=True, started_at="2026-11-19T00:00:00Z")
    assert (
        said(history.ask(c.StartAlone(plan=earlier, start=start("alone-2"))))
        == "launch 2 from nothing, attempt 2 from nothing"
    )


def test_runs_of_one_scope_key_come_in_any_order() -> None:
    history = History(scope="DE")
    day(history, "day-2")
    assert said(history.ask(launch("day-1", scope="DE"))) == "launch 2 from chk-1"


def test_a_run_without_date_has_its_place_by_its_first_start() -> None:
    """A retry is no later run than it was."""
    history = History()
    history.started("by hand")
    history.ended("failed")
    day(history, "day-21")
    error = refusal(history.ask(launch("by hand", 2, started_at="2026-11-30T00:00:00Z")), errors.OlderRun)
    assert error.about["newer"] == ["day-21"]
    other = refusal(history.ask(launch("another by hand")), errors.OlderRun)
    assert "run another by hand is older than what the state holds (day-21)" in other.message


def test_a_listed_run_goes_on_however_old_it_is() -> None:
    """Only of one that is not listed nobody knows whether it was here."""
    history = History()
    history.started("day-2")
    history.ended("failed")
    history.state = replace(history.state, dropped_run_after="2026-11-03T00:00:00Z")
    assert said(history.ask(launch("day-2", 2))) == "launch 2 from nothing"
    history = History()
    day(history, "day-4")
    history.state = replace(history.state, runs=(), dropped_run_after="2026-11-03T00:00:00Z")
    for run in ("day-2", "day-3"):
        error = refusal(history.ask(launch(run)), errors.OlderRun)
        assert "(runs no longer listed)" in error.message


def test_of_two_runs_of_one_moment_the_second_is_not_newer() -> None:
    history = History()
    day(history, "day-2")
    same = launch("the same day", run_after="2026-11-02T00:00:00Z")
    assert refusal(history.ask(same), errors.OlderRun).about["newer"] == ["day-2"]


# -- who asks again ------------------------------------------------------------------------------------------------------


def test_a_task_that_waited_for_a_suspended_job_launches_what_stands_then() -> None:
    """The same try: it was rescheduled, not retried."""
    history = History()
    history.started()
    history.completed()
    history.ended("suspended")
    history.suspended()
    refusal(history.ask(launch()), errors.JobSuspended)
    history.do(c.Restore(token=token("later", task="resume"), base=Point(id=1), by="ops", reason="go on"))
    assert said(history.ask(launch())) == "launch 2 from chk-1"


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
def test_a_refusal_names_the_run(
    given: Given, asks: c.PlanLaunch, error: type[CheckpointError], about: dict[str, Any]
) -> None:
    history = History()
    given(history)
    assert refusal(history.ask(asks), error).about == about


def test_a_history_says_who_opened_it() -> None:
    opened = History().do(launch())[0]
    assert isinstance(opened, e.HistoryOpened)
    assert opened.why == launch().owner


def test_on_clear_continue_needs_the_state_only_of_a_finished_run() -> None:
    history = History()
    history.started()
    history.ended("failed")
    assert said(history.ask(clear(on_clear="continue"))) == "launch 2 from nothing"
    history = History(scope="day-1")
    day(history, "day-1")
    history.condemned(1)
    refusal(history.ask(clear(on_clear="continue", scope="day-1")), errors.StateRequired)


# -- names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "names"),
    [
        (Point(id=41), {"a": "c", "d": "e"}),
        (Point(id=42), {"b": "c", "d": "e"}),
        (None, {"b": "c", "d": "e"}),
    ],
    ids=["the same base", "another base", "no base"],
)
def test_names_go_on_top_of_those_that_the_same_base_has(base: Point | None, names: dict[str, str]) -> None:
    branch = Branch(base=Point(id=41), rename={"a": "b"})
    assert renamed_on(State(branch=branch), base, {"b": "c", "d": "e"}) == names


def test_a_branch_from_nothing_renames_nothing() -> None:
    branch = Branch(base=None, rename={"a": "b"})
    assert renamed_on(State(branch=branch), None, {"b": "c"}) == {"b": "c"}


# -- several applications of one history -----------------------------------------------------------------------------------


def test_what_one_application_does_is_not_the_others() -> None:
    """Each has its launch and its attempts; only what both were to acknowledge ends with either."""
    history = History()
    for name in ("orders", "stock"):
        history.do(launch(task=name, application=name, owner="both"))
        history.do(replace(start(driver=name), token=token(task=name), application=name))
    for name in ("orders", "stock"):
        history.do(c.Trigger(request=name, application=name, epoch=1 if name == "orders" else 2, gated=True))
    assert said(history.ask(launch(try_number=2, task="stock", application="stock", owner="both"))) == (
        "launch 3 from nothing, abort chk-2"
    )
    assert history.state.running("orders")
    running = history.state.running("stock")
    assert running
    assert (running.epoch, history.state.over(1), history.state.over(2)) == (2, False, False)


def test_what_is_aborted_with_its_attempt_says_who_was_missing() -> None:
    history = History()
    history.started()
    history.triggered()
    aborted = history.do(launch(try_number=2))[-1]
    assert isinstance(aborted, e.CheckpointAborted)
    assert (aborted.missing, aborted.phase) == (("",), "acknowledge")


# -- scripts -------------------------------------------------------------------------------------------------------------


def test_a_script_that_was_replaced_meanwhile_hears_so() -> None:
    """The answer to its entry was lost, and another took over before it asked again."""
    history = History()
    mine = c.StartAlone(plan=launch("alone-1", alone=True), start=start("alone-1", driver="mine"))
    history.do(mine)
    history.do(c.StartAlone(plan=launch("alone-1", 2, alone=True), start=start("alone-1", 2, driver="another")))
    refusal(history.ask(mine), errors.Fenced)
