"""``max_restore_age=``: a run that starts from an older point is refused or logged; its retries and clears are not asked."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_checkpoint_provider.coordinator.restore import Candidate, Restored
from airflow_checkpoint_provider.errors import InvalidConfig, RestoreTooOld
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.operators._launched import LaunchParameters
from airflow_checkpoint_provider.operators._restore_age import RestoreAge
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import open_store
from tests.support.recorded import Recorded, at
from tests.unit.operators.tries import BEATS

TWO_HOURS = timedelta(hours=2)
NOW = at("03:02:10")


@pytest.fixture
def history(tmp_path: Path) -> Recorded:
    """A history that runs share. Its first run has completed chk-1 at 23:12:40, and has failed."""
    recorded = Recorded(open_store(str(tmp_path)), scope="")
    recorded.started("22:00:20", run="one")
    recorded.stage("clean", "23:12:32", "23:12:40", work_s=4320, kib=18.0)
    recorded.ended("23:20:00", "failed", 1)
    return recorded


def launch(
    recorded: Recorded, run: str, max_restore_age: Any, try_number: int = 1, generation: int = 0, **options: Any
) -> list[str]:
    """Plan a launch of ``run``. Return the lines of its log."""
    lines: list[str] = []
    parameters = LaunchParameters(
        history=History(recorded.job),
        token=recorded.token(run, generation),
        try_number=try_number,
        run_after=None,
        now=NOW,
        restore_age=RestoreAge.of(max_restore_age),
        **options,
    )
    DriverLaunch(recorded.store, parameters, lines.extend, BEATS).plan()
    return lines


def test_run_that_would_start_from_an_older_point_is_refused(history: Recorded) -> None:
    before = history.state.n
    with pytest.raises(RestoreTooOld) as refused:
        launch(history, "two", TWO_HOURS)
    assert refused.value.permanent
    assert str(refused.value) == (
        "flights_etl.delays: this run starts from chk-1, completed 2026-11-20 23:12, 3 h 50 min ago; max_restore_age= is 2 h. Nothing was"
        " changed. Find out why nothing newer was completed: `airflow checkpoints list flights_etl.delays`. To start all the same: raise"
        ' max_restore_age=, or write (…, "warn"); restore="none" starts without state  [CKP410]'
    )
    assert history.coordinator.journal.catch_up().n == before


def test_run_that_would_start_from_an_older_point_is_logged(history: Recorded) -> None:
    (line,) = [line for line in launch(history, "two", (TWO_HOURS, "warn")) if "OLD RESTORE POINT" in line]
    assert "chk-1, completed 2026-11-20 23:12, 3 h 50 min ago" in line
    assert line.endswith("[CKP105]")


@pytest.mark.parametrize("max_restore_age", [None, timedelta(hours=4), "4 h", (4 * 3600, "warn")])
def test_younger_point_is_not_mentioned(history: Recorded, max_restore_age: Any) -> None:
    assert "CKP105" not in "\n".join(launch(history, "two", max_restore_age))


def test_retry_and_clear_are_not_asked(history: Recorded) -> None:
    launch(history, "one", TWO_HOURS, try_number=2)
    history.coordinator.journal.catch_up()
    history.attached("03:03:00")
    history.ended("03:04:00", "failed", 1)
    launch(history, "one", TWO_HOURS, try_number=3, generation=1)


def test_retry_of_a_run_that_was_refused_is_refused_again(history: Recorded) -> None:
    """It has not begun."""
    for number in (1, 2):
        with pytest.raises(RestoreTooOld):
            launch(history, "two", TWO_HOURS, try_number=number)


def test_run_without_a_point_starts(history: Recorded) -> None:
    assert "CKP105" not in "\n".join(launch(history, "two", TWO_HOURS, restore="none"))
    assert "CKP105" not in "\n".join(launch(Recorded(scope=""), "one", TWO_HOURS))


def test_named_checkpoint_of_another_history_is_asked_too(history: Recorded) -> None:
    pointer = str(history.keys.pointer(history.store.uri, 1))
    other = Recorded(history.store, job="other.delays", scope="")
    with pytest.raises(RestoreTooOld, match="chk-1, completed 2026-11-20 23:12"):
        launch(other, "one", TWO_HOURS, restore=pointer)


def test_savepoint_whose_age_nobody_knows_is_logged() -> None:
    """Only its directory is known, which somebody has named on purpose."""
    point = Point(pointer="s3://lake/savepoints/savepoint-orders-7-abc")
    savepoint = Checkpoint(
        id=7, epochs=(1,), branch=0, plan=("",), request=Request(token=""), timeout_s=0.0, triggered_at=""
    )
    restored = Restored(point, candidates=(Candidate(savepoint, "chosen"),))
    (line,) = RestoreAge(1.0).judge("orders", State(), restored, NOW)
    assert line.startswith(f"orders: the age of {point} is not known")
    assert line.endswith("[CKP105]")


@pytest.mark.parametrize(
    "wrong",
    [
        "soon",
        -1,
        True,
        (TWO_HOURS,),
        (TWO_HOURS, "refuse"),
        ("warn", TWO_HOURS),
        ((TWO_HOURS, "warn"), "warn"),
        [TWO_HOURS, "warn"],
    ],
)
def test_wrong_value_is_refused_at_parse(wrong: object) -> None:
    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match="max_restore_age"):
        CheckpointedSparkSubmitOperator(task_id="job", application="job.py", max_restore_age=wrong)
