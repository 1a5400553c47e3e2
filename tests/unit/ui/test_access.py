"""Which part of a history belongs to runs that a user may see: nothing of another run is left in it."""

from __future__ import annotations

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.ui.access import Viewer, of_runs
from tests.support.recorded import RUN, Recorded, second_attempt, three_stages


class Reads(Viewer):
    """A user who may read the task instances of some DAGs; Airflow's own answers are tested in a real API server."""

    def __init__(self, *dags: str, admin: bool = False) -> None:
        super().__init__(None)
        self._dags = {"flights_etl": False, "": False} | dict.fromkeys(dags, True)
        self._connections = {"c": admin}


def two_runs() -> State:
    recorded = Recorded(scope="")
    recorded.started("22:00:20", run="one")
    recorded.stage("clean", "22:10:00", "22:10:03", work_s=500, kib=30)
    recorded.ended("22:20:00")
    recorded.started("23:00:00", run="two")
    recorded.stage("clean", "23:10:00", "23:10:03", work_s=500, kib=30)
    recorded.triggered("stage 'more'", "23:20:00")
    return recorded.state


def test_user_who_may_read_the_dag_sees_all_of_it() -> None:
    state = two_runs()
    assert Reads("flights_etl").visible(state, "c") is state


def test_admin_sees_a_history_whose_owner_is_not_known() -> None:
    recorded = Recorded(job="script")  # no dot: no DAG
    recorded.started("22:00:20")
    assert Reads("flights_etl").visible(recorded.state, "c") is None
    assert Reads(admin=True).visible(recorded.state, "c") is recorded.state


def test_user_who_may_not_read_the_dag_sees_nothing() -> None:
    assert Reads("another").visible(two_runs(), "c") is None


def test_nothing_of_another_run_is_left() -> None:
    seen = of_runs(two_runs(), {"two"}, unknown=False)
    assert [run.key for run in seen.runs] == ["two"]
    assert [attempt.epoch for attempt in seen.attempts] == [2]
    assert {epoch for checkpoint in seen.checkpoints for epoch in checkpoint.epochs} == {2}
    assert statistics.counts(seen)["completed"] == 1
    assert [launch.spec.run for launch in seen.launches] == ["two"]


def test_run_whose_launch_is_not_listed_any_more_is_hidden() -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    state = recorded.state
    assert of_runs(state, {RUN}, unknown=False) is state
    forgotten = State.from_json(state.to_json() | {"launches": []})
    assert Reads("flights_etl").visible(forgotten, "c") is None
    assert Reads(admin=True).visible(forgotten, "c") is forgotten


def test_run_before_the_listed_launches_is_for_admins() -> None:
    state = two_runs()
    newer = State.from_json(state.to_json() | {"launches": [state.launches[1].to_json()]})
    shown, to_admin = Reads("flights_etl").visible(newer, "c"), Reads("flights_etl", admin=True).visible(newer, "c")
    assert shown
    assert [run.key for run in shown.runs] == ["two"]
    assert [attempt.epoch for attempt in shown.attempts] == [2]
    assert to_admin is newer


def test_admin_of_the_connection_needs_the_permission_of_the_dag_too() -> None:
    assert Reads("another", admin=True).visible(two_runs(), "c") is None
