"""Which part of a history belongs to runs that a user may see: nothing of another run is left in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.liveness import Beat, EarliestOffsets
from airflow_checkpoint_provider.operators._link import Place
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.protocol.keys import location_path
from airflow_checkpoint_provider.protocol.query_records import Query, QueryLocation
from airflow_checkpoint_provider.protocol.state import Branch, Launch, State
from airflow_checkpoint_provider.text.restore_story import HIDDEN_START
from airflow_checkpoint_provider.ui.access import Viewer, of_runs
from airflow_checkpoint_provider.ui.polling import Reading
from airflow_checkpoint_provider.ui.views.job import JobPage, job_page
from airflow_checkpoint_provider.ui.views.jobs import job_row
from tests.support.recorded import RUN, Recorded, at, second_attempt, shared_by_two_runs, three_stages
from tests.support.viewers import CONNECTION, Reads

OWNERS = {"one": "flights_etl", "two": "orders"}
"""The DAG of each run."""


class SharedHistory(Recorded):
    """The history of a job whose runs belong to two DAGs."""

    def __init__(self) -> None:
        super().__init__(scope="")

    def token(self, run: str = "", generation: int = 0) -> Token:
        return replace(super().token(run, generation), dag=OWNERS[run])


def shared() -> SharedHistory:
    recorded = SharedHistory()
    recorded.started("22:00:20", run="one")
    recorded.stage("clean", "22:10:00", "22:10:03", work_s=500, kib=30)
    recorded.ended("22:20:00")
    recorded.started("23:00:00", run="two")
    return recorded


def read(recorded: Recorded, beat: Beat | None = None) -> Reading:
    state = recorded.state
    missing = {checkpoint.id: ("",) for checkpoint in state.pending}
    return Reading(FoundHistory(recorded.keys, state), recorded.store.uri, beat, True, missing)


def seen(viewer: Viewer, reading: Reading) -> Reading:
    visible = viewer.visible(reading, CONNECTION)
    assert visible
    return visible


def part_of(state: State, run: str) -> State:
    """Return what the reader of one run sees, who may read the DAG ``flights_etl``."""
    return of_runs(state, {run}, unknown=False, reads=Reads("flights_etl").reads)


def two_runs() -> Recorded:
    recorded = shared_by_two_runs()
    recorded.triggered("stage 'more'", "23:20:00")
    return recorded


def test_user_who_may_read_the_dag_sees_all_of_it() -> None:
    reading = read(two_runs())
    assert Reads("flights_etl").visible(reading, CONNECTION) is reading


def test_admin_sees_a_history_whose_owner_is_not_known() -> None:
    recorded = Recorded(job="script")  # no dot: no DAG
    recorded.started("22:00:20")
    reading = read(recorded)
    assert Reads("flights_etl").visible(reading, CONNECTION) is None
    assert Reads(admin=True).visible(reading, CONNECTION) is reading


def test_user_who_may_not_read_the_dag_sees_nothing() -> None:
    assert Reads("another").visible(read(two_runs()), CONNECTION) is None


def test_nothing_of_another_run_is_left() -> None:
    seen = part_of(two_runs().state, "two")
    assert [run.key for run in seen.runs] == ["two"]
    assert [attempt.epoch for attempt in seen.attempts] == [2]
    assert {epoch for checkpoint in seen.checkpoints for epoch in checkpoint.epochs} == {2}
    assert statistics.counts(seen)["completed"] == 1
    assert [launch.spec.run for launch in seen.launches] == ["two"]


def listing(recorded: Recorded, launches: tuple[Launch, ...]) -> Reading:
    """Return the reading of a history that lists no other launches any more."""
    reading = read(recorded)
    return replace(reading, found=replace(reading.found, state=replace(recorded.state, launches=launches)))


def test_run_whose_launch_is_not_listed_any_more_is_hidden() -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    assert part_of(recorded.state, RUN) is recorded.state
    forgotten = listing(recorded, ())
    assert Reads("flights_etl").visible(forgotten, CONNECTION) is None
    assert Reads(admin=True).visible(forgotten, CONNECTION) is forgotten


def test_run_before_the_listed_launches_is_for_admins() -> None:
    recorded = two_runs()
    newer = listing(recorded, recorded.state.launches[1:])
    shown = seen(Reads("flights_etl"), newer).found.state
    assert [run.key for run in shown.runs] == ["two"]
    assert [attempt.epoch for attempt in shown.attempts] == [2]
    assert Reads("flights_etl", admin=True).visible(newer, CONNECTION) is newer


def test_admin_of_the_connection_needs_the_permission_of_the_dag_too() -> None:
    assert Reads("another", admin=True).visible(read(two_runs()), CONNECTION) is None


# -- a history that runs of two DAGs share -------------------------------------------------------------------------------


def next_start(viewer: Viewer, recorded: Recorded) -> str:
    return job_row(CONNECTION, seen(viewer, read(recorded)), at("23:59:00")).next_start


def test_next_start_is_that_of_the_whole_history() -> None:
    """A part of the history has an older checkpoint, where the next attempt does not start."""
    recorded = shared()
    assert next_start(Reads("flights_etl"), recorded) == "chk-1"
    assert next_start(Reads("orders"), recorded) == HIDDEN_START
    recorded.stage("clean", "23:10:00", "23:10:03", work_s=500, kib=30)
    assert next_start(Reads("flights_etl"), recorded) == HIDDEN_START
    assert next_start(Reads("orders"), recorded) == "chk-2"
    assert next_start(Reads("orders", "flights_etl"), recorded) == "chk-2"


def test_page_of_a_part_says_that_the_next_start_is_hidden() -> None:
    recorded = shared()
    page = job_page(Place(CONNECTION, recorded.keys.prefix), seen(Reads("orders"), read(recorded)), at("23:59:00"))
    assert {fact.label: fact.text for fact in page.head.facts}["Next attempt starts from"] == HIDDEN_START


def test_branch_is_hidden_with_the_run_that_has_opened_it() -> None:
    recorded = shared()
    recorded.ended("23:20:00")
    branch = Branch(
        number=1, base=Point(pointer="s3://lake/jobs/other/job/chk-7"), token=recorded.token("two"), reason="why"
    )
    whole = replace(recorded.state, branch=branch)
    assert part_of(whole, "one").branch == Branch(number=1)
    assert part_of(whole, "two").branch == branch
    at_hidden = replace(branch, base=Point(id=1))
    assert part_of(replace(whole, branch=at_hidden), "two").branch == Branch(number=1)


def test_suspension_is_hidden_with_the_run_that_was_stopped() -> None:
    recorded = shared()
    recorded.suspended("23:30:00")
    assert recorded.state.suspended
    assert part_of(recorded.state, "one").suspended is None
    assert part_of(recorded.state, "two").suspended == recorded.state.suspended


def test_end_of_a_history_is_hidden_with_its_newest_run() -> None:
    closed = replace(shared().state, closing_reason="why", closed=True)
    hidden, shown = (part_of(closed, run) for run in ("one", "two"))
    assert (hidden.closing_reason, hidden.closed) == (None, False)
    assert (shown.closing_reason, shown.closed) == ("why", True)


def test_query_is_hidden_with_the_run_that_runs_it() -> None:
    location = QueryLocation(path=location_path("totals", 2, "nonce"), branch=0)
    whole = replace(shared().state, queries=(Query(uid="totals", locations=(location,)),))
    assert part_of(whole, "one").queries == ()
    assert part_of(whole, "two").queries == whole.queries


def test_heartbeat_is_hidden_with_the_run_whose_driver_it_is() -> None:
    earliest = (EarliestOffsets(uid="totals", at=at("23:10:00"), sources={}),)
    beat = Beat(counter=3, at=at("23:10:00"), activity="stage 'secret'", earliest=earliest)
    recorded = shared()
    recorded.triggered("stage 'more'", "23:20:00")
    whole = replace(read(recorded, beat), earliest=earliest)
    hidden, shown = seen(Reads("flights_etl"), whole), seen(Reads("orders"), whole)
    assert (hidden.beat, hidden.alive, hidden.missing, hidden.earliest) == (None, None, {}, ())
    assert (shown.beat, shown.alive, shown.missing, shown.earliest) == (beat, True, {2: ("",)}, earliest)


def test_number_of_the_newest_attempt_is_hidden_too() -> None:
    hidden = job_row(CONNECTION, seen(Reads("flights_etl"), read(shared())), at("23:59:00"))
    assert (hidden.run, hidden.attempt) == ("one", 1)


def test_nothing_of_a_hidden_run_is_named_on_the_page() -> None:
    recorded = shared()
    recorded.suspended("23:30:00")
    reading = seen(Reads("flights_etl"), read(recorded, Beat(counter=3, at=at("23:10:00"), activity="by orders")))
    page = job_page(Place(CONNECTION, recorded.keys.prefix), reading, at("23:59:00"))
    assert "orders" not in repr(page)
    assert "'two'" not in repr(page)


# -- what other runs have left behind ------------------------------------------------------------------------------------


def page_of(viewer: Viewer, recorded: Recorded) -> JobPage:
    return job_page(Place(CONNECTION, recorded.keys.prefix), seen(viewer, read(recorded)), at("23:59:00"))


def test_what_a_run_has_left_is_hidden_when_no_record_of_it_is_listed_any_more() -> None:
    """A history lists a hundred launches. Its counts and queries are of all that there ever were."""
    state = shared().state
    secret = Query(uid="secret", locations=(QueryLocation(path=location_path("secret", 1, "nonce"), branch=0),))
    evicted = replace(
        state,
        launches=state.launches[1:],
        attempts=state.attempts[1:],
        runs=state.runs[1:],
        checkpoints=(),
        queries=(secret,),
        suspended="flights_etl.stop",
        counts={"completed": 41, "aborted": 7},
    )
    part = part_of(evicted, "two")
    assert (part.counts, part.queries, part.suspended) == ({}, (), None)
    assert of_runs(evicted, {"two"}, unknown=True, reads=Reads().reads) is evicted


@pytest.mark.parametrize(
    ("reason", "details"),
    [("restore", "jane of flights_etl: bad prices"), ("aborted by a DAG", "by task secret.abort of run jane")],
)
def test_who_has_aborted_a_checkpoint_is_hidden(reason: str, details: str) -> None:
    recorded = shared()
    recorded.aborted(recorded.triggered("stage 'more'", "23:31:00"), "23:35:00", reason, details)
    assert "jane" not in repr(page_of(Reads("orders"), recorded))
    assert "jane" in repr(page_of(Reads("orders", "flights_etl"), recorded))


def test_what_a_driver_says_of_an_aborted_checkpoint_is_shown() -> None:
    recorded = shared()
    recorded.aborted(recorded.triggered("stage 'more'", "23:31:00"), "23:35:00", "declined", "no such column")
    assert "no such column" in repr(page_of(Reads("orders"), recorded))


def test_task_that_has_asked_for_a_checkpoint_is_hidden_with_its_dag() -> None:
    recorded = shared()
    recorded.clock = at("23:31:00")
    request = Request(token="orders.secret|run|trigger|-1|0", origin="task", owner="orders.secret.trigger")
    recorded.coordinator.trigger(request)
    (hidden,) = page_of(Reads("orders"), recorded).pending
    (shown,) = page_of(Reads("orders", "orders.secret"), recorded).pending
    assert (hidden.by, shown.by) == ("task", "task orders.secret.trigger")
    assert "orders.secret" not in repr(page_of(Reads("orders"), recorded))


def test_task_that_has_suspended_the_job_is_hidden_with_its_dag() -> None:
    recorded = shared()
    recorded.suspended("23:30:00")
    *others, stop = recorded.state.checkpoints
    asked = replace(stop.request, origin="task", owner="secret.stop")
    state = replace(
        recorded.state,
        checkpoints=(*others, replace(stop, request=asked)),
        suspended=f"{stop.completed_at} (secret.stop, {stop.target})",
    )
    assert part_of(state, "two").suspended == f"{stop.completed_at} (task, {stop.target})"


def test_start_at_a_checkpoint_of_a_hidden_run_is_told_without_its_name() -> None:
    (attempt,) = page_of(Reads("orders"), shared()).attempts
    assert attempt.started_from == HIDDEN_START
    assert any(f"{HIDDEN_START}  CHOSEN" in line for line in attempt.story)
    assert "not listed any more" not in repr(attempt)
    assert "chk-1" not in repr(attempt)


def test_effect_of_a_failure_does_not_say_a_start_that_is_hidden() -> None:
    recorded = shared()
    recorded.aborted(recorded.triggered("stage 'more'", "23:31:00"), "23:35:00", "expired")
    (failed,) = page_of(Reads("orders"), recorded).checkpoints
    assert any(f"the next attempt starts from {HIDDEN_START}" in line for line in failed.story)


def test_heartbeat_is_shown_of_a_run_that_started_at_a_hidden_checkpoint() -> None:
    beat = Beat(counter=3, at=at("23:10:00"), activity="stage 'mine'")
    assert seen(Reads("orders"), read(shared(), beat)).beat == beat
