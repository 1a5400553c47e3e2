"""The driver of a job that keeps files is killed, or sleeps, at each of their steps: none is lost, changed or given out by half."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.storage import Store
from tests.support.launches import Launches
from tests.support.runs import PATIENCE, Ended, Home
from tests.support.waiting import wait_until

REPLACED = 79
FOLDERS = ("model", "index")
POINTS = [
    *(f"files/{uid}/{step}" for uid in FOLDERS for step in ("written", "listed", "before-storing", "stored")),
    *(
        f"checkpoint/{number}/{step}"
        for number in (2, 3)
        for step in ("before-trigger", "triggered", "acknowledged", "sealed", "completed")
    ),
    *(f"stage/scored/{step}" for step in ("writing", "rows-written")),
]
ASLEEP = (
    "files/model/written",
    "files/model/before-storing",
    "files/index/before-storing",
    "checkpoint/2/acknowledged",
)
ROWS = [[f"name {x}", 3.0 * x + 1] for x in range(7)]


@pytest.fixture
def home(tmp_path: Any, request: pytest.FixtureRequest) -> Home:
    s3 = request.getfixturevalue("s3") if getattr(request, "param", "") == "s3" else None
    return Home(tmp_path / "home", "model.py", s3=s3)


def check(ended: Ended, coordinator: Coordinator) -> None:
    """The result is that of an undisturbed run, and what the restore point held was not written again."""
    assert ended.code == 0, ended.log
    assert ended.result["rows"] == ROWS
    assert ended.result["fits"] == 1
    assert {uid for uid in FOLDERS if f"folder '{uid}': reused" in ended.log} == restored(coordinator)


def restored(coordinator: Coordinator) -> set[str]:
    """The folders in the checkpoint from which the newest attempt started."""
    state = coordinator.state
    point = state.attempts[-1].restore_point
    checkpoint = state.checkpoint(point.id) if point and point.id else None
    return {entry.uid for entry in (checkpoint.states if checkpoint else ()) if entry.kind == "files"}


@pytest.mark.slow  # test_files.py: retries in one process; test_loop_kills.py kills a driver
@pytest.mark.timeout(600)
def test_model_and_index_of_a_driver_that_was_killed_are_used_again(home: Home) -> None:
    home.killed("checkpoint/3/completed")
    check(home.run(), home.coordinator())
    assert restored(home.coordinator()) == set(FOLDERS)


@pytest.mark.slow  # test_model_and_index_of_a_driver_that_was_killed_are_used_again
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("home", "point"), [(store, point) for store in ("local", "s3") for point in POINTS], indirect=["home"]
)
def test_files_are_kept_or_written_again_after_a_kill_at_any_step(home: Home, point: str) -> None:
    home.killed(point)
    check(home.run(), home.coordinator())


@pytest.mark.slow  # as the tests whose steps it counts
@pytest.mark.timeout(600)
def test_steps_are_all_steps_of_an_undisturbed_run(home: Home) -> None:
    points = home.folder / "points"
    check(home.run(("record", str(points))), home.coordinator())
    passed = {point for point in points.read_text().split() if point.startswith("files/")}
    assert passed == {point for point in POINTS if point.startswith("files/")}


@pytest.mark.slow  # test_loop_kills.py: an attempt that was replaced writes nothing
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ASLEEP)
def test_driver_that_slept_changes_no_file_after_it_was_replaced(home: Home, point: str) -> None:
    launches = Launches(home.store)
    with home.started(("stop", point), confs=launches.plan(1)) as asleep:
        wait_until(asleep.is_stopped, PATIENCE, asleep.said)
        check(home.run(confs=launches.plan(2)), launches.coordinator())
        before = objects(launches.coordinator(), home.store)
        assert before
        asleep.send(signal.SIGCONT)
        assert asleep.wait().code == REPLACED
    assert before <= objects(launches.coordinator(), home.store)


def objects(coordinator: Coordinator, store: Store) -> set[tuple[str, int]]:
    """The files of the folders that a checkpoint names."""
    states = [state for one in coordinator.state.retained for state in coordinator.contents(one)[0].states.values()]
    folders = {
        coordinator.keys.file_set(file_set.path) for state in states if state.files for file_set in state.file_sets
    }
    return {(listed.key, listed.size) for folder in folders for listed in store.list(folder)}
