"""Who sees a history: whoever may read the DAGs of all launches that it lists."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.protocol.state import State
from tests.support.recorded import Recorded, shared_by_two_runs
from tests.support.viewers import CONNECTION, Reads
from tests.unit.ui.shared_histories import MANY, shared_by


def sees(viewer: Reads, recorded: Recorded) -> bool:
    return viewer.sees(recorded.state, CONNECTION)


def test_history_is_for_who_may_read_each_dag_of_its_launches() -> None:
    recorded = shared_by(["flights", "orders"])
    assert sees(Reads("flights", "orders", "another"), recorded)
    assert not sees(Reads("flights"), recorded)
    assert not sees(Reads("orders"), recorded)
    assert not sees(Reads(), recorded)


def test_each_dag_is_asked_for_once() -> None:
    viewer = Reads("flights_etl")
    for _ in range(2):
        assert sees(viewer, shared_by_two_runs())
    assert viewer.asked == ["flights_etl"]


def test_history_of_too_many_dags_is_for_nobody_and_none_is_asked_for() -> None:
    viewer = Reads(*MANY, "one more", admin=True)
    assert sees(viewer, shared_by(MANY))
    assert sorted(viewer.asked) == sorted(MANY)
    asked = list(viewer.asked)
    assert not sees(viewer, shared_by([*MANY, "one more"]))
    assert viewer.asked == asked


def test_first_dag_that_is_denied_ends_the_questions() -> None:
    viewer = Reads("nothing here")
    assert not sees(viewer, shared_by(MANY))
    assert len(viewer.asked) == 1


@pytest.mark.parametrize("dags", [["script"], ["flights", "script"]])
def test_history_of_a_script_without_airflow_is_for_admins(dags: list[str]) -> None:
    recorded = shared_by(dags)
    assert not sees(Reads("flights"), recorded)
    assert sees(Reads("flights", admin=True), recorded)


def test_history_that_lists_no_launch_is_for_admins() -> None:
    assert not Reads("flights_etl").sees(State(), CONNECTION)
    assert Reads(admin=True).sees(State(), CONNECTION)


def test_admin_needs_the_permission_of_each_dag_too() -> None:
    assert not sees(Reads("orders", admin=True), shared_by(["flights", "orders"]))
