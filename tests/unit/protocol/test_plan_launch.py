"""PlanLaunch, rule by rule (docs/inside/state-machine.md), and the checks before all rules. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.transitions import fold
from airflow_checkpoint_provider.text import launch_messages
from tests.support.histories import JOB, Given, History, at, clear, described, in_turn, launch, refusal, start, two_days


def nothing(_: History) -> None:
    """No history yet."""


def queued(h: History) -> None:
    """Plan a launch whose driver has not started."""
    h.launched()


def running(h: History) -> None:
    h.started()


def sealed(h: History) -> None:
    """Start an attempt and complete one checkpoint."""
    h.started()
    h.completed()


def failed(h: History) -> None:
    sealed(h)
    h.ended("failed")


def finished(h: History) -> None:
    sealed(h)
    h.ended()


def stopping(h: History) -> None:
    h.started()
    h.do(c.RequestStop(launch=1, try_number=1, by="task", reason="marked failed"))


def adopted(h: History) -> None:
    h.started()
    h.do(launch(try_number=2, seen_alive=True))


def suspended(h: History) -> None:
    failed(h)
    h.suspended()


def with_pending(h: History) -> None:
    sealed(h)
    h.triggered()


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(nothing, launch(), "open, launch 1 from nothing", id="the first launch opens the history"),
        # -- 1
        pytest.param(queued, launch(), "done 1", id="1: a known token is answered with its launch"),
        pytest.param(finished, launch(), "AlreadyFinished", id="1: a try whose driver finished asks again: made again"),
        pytest.param(failed, launch(), "Superseded", id="1: a try whose driver has been there asks again: made again"),
        pytest.param(adopted, launch(), "Superseded", id="1: known, but a later try adopted the launch"),
        pytest.param(adopted, launch(try_number=2), "done 1", id="1: an adopter's token is known, too"),
        pytest.param(
            in_turn(running, lambda h: h.launched(try_number=2)), launch(), "Superseded", id="1: known, but replaced since"
        ),
        pytest.param(suspended, launch(try_number=2), "JobSuspended", id="1: suspended"),
        pytest.param(suspended, launch("day-2"), "JobSuspended", id="1: suspended, for any run"),
        # -- 2
        pytest.param(failed, launch(try_number=2, task="report"), "TwoOwners", id="2: another task of the same run"),
        pytest.param(failed, launch("day-2", task="report"), "launch 2 from chk-1", id="2: another task in another run is fine"),
        # -- 3
        pytest.param(
            lambda h: h.launched(try_number=3), launch(try_number=2), "Superseded", id="3: an earlier try than the launch's"
        ),
        pytest.param(adopted, launch(try_number=1, generation=7), "Superseded", id="3: an earlier try than its adopter's"),
        # -- 4
        pytest.param(finished, launch(try_number=2), "AlreadyFinished", id="4: a retry of a finished run"),
        pytest.param(finished, clear(), "branch 1 from nothing, launch 2 from nothing", id="4: a clear of one goes on to 7"),
        # -- 5
        pytest.param(running, launch(try_number=2, seen_alive=True), "adopt launch 1", id="5: alive, same run: adopted"),
        pytest.param(queued, launch(try_number=2, seen_alive=True), "adopt launch 1", id="5: alive while it queues in the cluster"),
        pytest.param(adopted, launch(try_number=3, seen_alive=True), "adopt launch 1", id="5: adopted a second time"),
        pytest.param(running, launch(try_number=2), "launch 2 from nothing", id="5: not seen alive: replaced"),
        pytest.param(queued, launch(try_number=2), "launch 2 from nothing", id="5: not seen alive while it queues: replaced"),
        pytest.param(
            running, launch(try_number=2, seen_alive=True, durable=False), "launch 2 from nothing", id="5: durable=False fences"
        ),
        pytest.param(stopping, launch(try_number=2, seen_alive=True), "Stopping", id="5: a stopping one is waited for"),
        pytest.param(stopping, launch(try_number=2), "launch 2 from nothing", id="5: a stopping one that died is replaced"),
        pytest.param(running, clear(seen_alive=True), "adopt launch 1", id="5: a clear adopts as well"),
        pytest.param(
            running, clear(seen_alive=True, on_clear="restart"), "branch 1 from nothing, launch 2 from nothing",
            id='5: but not with on_clear="restart"',
        ),
        pytest.param(
            running, launch(try_number=2, seen_alive=True, on_clear="restart"), "adopt launch 1",
            id='5: on_clear="restart" means nothing to a retry',
        ),
        pytest.param(
            running, launch(try_number=2, seen_alive=True, alone=True), "JobAlreadyRunning", id="5: a script is refused beside one"
        ),
        pytest.param(running, launch("day-2", seen_alive=True), "JobAlreadyRunning", id="5: another run beside a living one"),
        pytest.param(queued, launch("day-2", seen_alive=True), "JobAlreadyRunning", id="5: another run beside a queued one"),
        pytest.param(sealed, launch("day-2"), "launch 2 from chk-1", id="5: another run, nobody seen: goes on"),
        pytest.param(
            failed, launch(try_number=2, seen_alive=True), "launch 2 from chk-1", id="5: whose end is on record is not alive"
        ),
        # -- 6
        pytest.param(
            two_days, clear("day-1"), "RunIsOlder", id="6: a clear of a run older than the runs in the state"
        ),
        pytest.param(two_days, launch("day-0"), "RunIsOlder", id="6: a new run that is older"),
        pytest.param(two_days, launch("day-3"), "launch 3 from chk-2", id="6: a newer run"),
        pytest.param(
            two_days, clear("day-2"), "branch 1 from chk-1, launch 3 from chk-1", id="6: the newest itself"
        ),
        pytest.param(
            in_turn(lambda h: h.started("day-2"), lambda h: h.ended("failed")), launch("day-1"), "launch 2 from nothing",
            id="6: a newer run that completed nothing is not inside the state",
        ),
        # -- 7
        pytest.param(
            nothing, launch(restore="none"), "open, branch 1 from nothing, launch 1 from nothing", id="7: restore= opens a branch"
        ),
        pytest.param(failed, launch("day-2", restore="none"), "branch 1 from nothing, launch 2 from nothing", id="7: per run"),
        pytest.param(failed, launch(try_number=2, restore="none"), "launch 2 from chk-1", id="7: not on its later launches"),
        pytest.param(failed, clear(restore="none"), "launch 2 from chk-1", id="7: nor after a clear"),
        pytest.param(with_pending, launch(try_number=2), "launch 2 from chk-1, abort chk-2", id="7: settles what was pending"),
        pytest.param(
            with_pending, launch("day-2", restore="none"), "branch 1 from nothing, launch 2 from nothing, abort chk-2",
            id="7: the branch first: it leaves no current launch",
        ),
        pytest.param(nothing, launch(require_state=True), "StateRequired", id="7: require_state, and nothing there"),
        pytest.param(failed, launch("day-2", require_state=True), "launch 2 from chk-1", id="7: require_state, and a checkpoint"),
        pytest.param(failed, launch("day-2", restore="none", require_state=True), "StateRequired", id="7: require_state beside none"),
    ],
)  # fmt: skip
def test_rules_are_applied_in_order(given: Given, asked: c.PlanLaunch, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


def test_refusal_of_a_second_owner_names_both() -> None:
    history = History()
    failed(history)
    error = refusal(history.ask(launch(try_number=2, task="report")), errors.TwoOwners)
    assert error.about["owners"] == ("flights.delays", "flights.report")
    assert "flights.delays" in error.message
    assert "flights.report" in error.message
    assert error.permanent


def of_dag(dag: str, task: str, **other: Any) -> c.PlanLaunch:
    plan = launch(task=task, **other)
    token = replace(plan.spec.token, dag=dag)
    return replace(plan, spec=replace(plan.spec, token=token, owner=token.owner))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("etl", "daily.load"), ("etl.daily", "load")),
        (("etl.daily", "load"), ("etl", "daily.load")),
        (("a.b", "c.d"), ("a.b.c", "d")),
    ],
)
def test_tasks_of_two_dags_are_two_owners_though_their_texts_are_one(
    first: tuple[str, str], second: tuple[str, str], ended: bool
) -> None:
    """A task in a group has a dot in its id, and the id of a DAG may have one, too."""
    history = History()
    history.do(of_dag(*first))
    if ended:
        history.do(c.EndLaunch(launch=1, try_number=1, outcome="failed", exit_code=1))
    asks = of_dag(*second, try_number=2, generation=7, seen_alive=not ended)
    assert asks.spec.owner == history.state.runs[-1].owner
    error = refusal(history.ask(asks), errors.TwoOwners)
    assert error.message.startswith(
        f"tasks {first[1]} of DAG {first[0]} and {second[1]} of DAG {second[0]} share job id"
    )
    own = of_dag(*first, try_number=2, generation=7, seen_alive=not ended)
    assert described(history.ask(own)) == ("launch 2 from nothing" if ended else "adopt launch 1")


def test_superseded_try_is_permanent_and_names_the_latest_try() -> None:
    history = History()
    history.launched(try_number=3)
    error = refusal(history.ask(launch(try_number=2)), errors.Superseded)
    assert error.permanent
    assert error.about == {"run": "day-1", "latest_try": 3}
    assert error.message == launch_messages.superseded(history.state, "day-1"), "the task logs the same sentence"


@pytest.mark.parametrize("command", [launch(try_number=2), start()], ids=["a task", "a driver"])
def test_refusal_of_a_suspended_job_gives_the_resume_command(command: c.Command) -> None:
    history = History()
    history.launched()
    history.suspended()
    error = refusal(history.ask(command), errors.JobSuspended)
    assert error.message.endswith("to resume it: `airflow checkpoints restore flights.delays --from latest`")


def test_known_launch_is_superseded_by_a_branch() -> None:
    """A branch opened by hand leaves no current launch, so the try that was current must not go on."""
    history = History()
    failed(history)
    history.do(launch("day-2", restore="none"))
    assert described(history.ask(launch())) == "Superseded"


def test_refusal_of_an_older_run_names_the_newer_runs() -> None:
    history = History()
    two_days(history)
    error = refusal(history.ask(clear("day-1")), errors.RunIsOlder)
    assert error.about == {"newer": ["day-2"], "before": None}
    assert "There is no checkpoint from before it to go back to" in error.message


def test_refusal_of_an_older_run_names_the_checkpoint_before_it() -> None:
    history = History()
    two_days(history)
    assert history.state.retained
    error = refusal(history.ask(launch("between", run_after="2026-11-01T12:00:00Z")), errors.RunIsOlder)
    assert "a backfill with --max-active-runs 1" in error.message
    assert error.about["newer"] == ["day-2"]
    assert f"`airflow checkpoints restore flights.delays --from chk-{error.about['before']}`" in error.message


def test_clear_of_an_older_run_is_refused_in_a_history_that_runs_share_by_a_key() -> None:
    history = History("2026-11")
    two_days(history)
    refusal(history.ask(clear("day-1", scope="2026-11")), errors.RunIsOlder)


def test_adopted_launch_keeps_its_token_for_the_driver() -> None:
    """The driver that still queues starts with the planned token, not with that of the adopter."""
    history = History()
    queued(history)
    history.do(launch(try_number=2, seen_alive=True))
    assert described(history.ask(start(try_number=2))) == "Fenced"
    assert described(history.ask(start(try_number=1))) == "attempt 1 from nothing"


def test_tokens_of_a_thousand_launches_are_kept() -> None:
    """B51: with only the last token kept, a sleeping try would plan another launch."""
    history = History()
    for number in range(1, 1002):
        decision = history.ask(launch(try_number=number))
        assert isinstance(decision, tuple)
        history.state = fold(history.state, number - 1, at(number), decision)
    assert len(history.state.tokens) == 1000
    assert described(history.ask(launch(try_number=2))) == "Superseded"
    assert len(history.state.launches) == 100


def test_history_gets_its_names_from_its_first_entry() -> None:
    history = History("day-1")
    history.do(launch(scope="day-1", item="table a"))
    assert (history.state.job, history.state.scope, history.state.item) == (JOB, "day-1", "table a")
    assert history.state.incarnation == "1ncarnation"
