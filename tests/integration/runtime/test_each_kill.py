"""The driver or its JVM is killed at each step of a run, and the script runs once more."""

from __future__ import annotations

import pytest

from tests.integration.runtime.conftest import Undisturbed
from tests.integration.runtime.totals import check, stages
from tests.support.runs import Home

STAGES = ("clean", "named", "priced", "totals")
AT_A_STAGE = ("writing", "rows-written", "rows-counted", "plan-kept")
AT_A_CHECKPOINT = (
    "before-trigger",
    "triggered",
    "before-acknowledgement",
    "acknowledged",
    "before-seal",
    "sealed",
    "before-completion",
    "completed",
)
AT_A_DELETION = ("before-condemning", "condemned", "deleted", "before-forgetting", "forgotten")

START = ["attempt/before-start", "attempt/started", "attempt/brought-in", "attempt/attached"]
WORK = [
    *(f"stage/{uid}/{step}" for uid in STAGES for step in AT_A_STAGE),
    *(f"checkpoint/{number}/{step}" for number in range(1, 7) for step in AT_A_CHECKPOINT),
    *(f"retire/{number}/{step}" for number in range(1, 5) for step in AT_A_DELETION),
    *(f"value/{uid}/set-{times}" for uid in ("seen", "rows") for times in range(1, 5)),
]
END = ["attempt/before-end", "attempt/ended"]
IN_S3 = [point for point in WORK if point.startswith(("stage/priced/", "checkpoint/3/", "retire/2/"))]
WITHOUT_JVM = [point for point in WORK if point.startswith(("stage/", "checkpoint/2/", "retire/1/", "value/rows/"))]


@pytest.mark.slow  # as the tests whose steps it counts
def test_steps_are_all_steps_of_an_undisturbed_run(undisturbed: Undisturbed) -> None:
    assert sorted(undisturbed.points) == sorted([*START, *WORK, *END])


def kill_and_go_on(
    home: Home, undisturbed: Undisturbed, action: str, point: str, code: int, *, submit: bool = False
) -> None:
    killed = home.run((action, point), submit=submit)
    assert killed.code == code, killed.log
    held = stages(home.coordinator().state)
    ended = home.run(submit=submit)
    assert ended.code == 0, ended.log
    assert set(ended.computed) == set(STAGES) - held
    check(home, ended, undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("home", "point"),
    [*(("local", point) for point in (*START, *WORK, "attempt/before-end")), *(("s3", point) for point in IN_S3)],
    indirect=["home"],
)
def test_retry_completes_the_run_after_the_driver_was_killed(home: Home, undisturbed: Undisturbed, point: str) -> None:
    kill_and_go_on(home, undisturbed, "kill", point, -9)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", WITHOUT_JVM)
@pytest.mark.parametrize(("submit", "code"), [(False, 1), (True, -9)], ids=["python", "spark-submit"])
def test_retry_completes_the_run_after_its_jvm_was_killed(
    home: Home, undisturbed: Undisturbed, point: str, submit: bool, code: int
) -> None:
    kill_and_go_on(home, undisturbed, "kill-jvm", point, code, submit=submit)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_next_start_is_a_new_run_if_the_driver_was_killed_after_the_end(home: Home, undisturbed: Undisturbed) -> None:
    """The run finished; the next start is another run, which computes everything and goes on with the values."""
    assert home.run(("kill", "attempt/ended")).code == -9
    again = home.run()
    assert again.code == 0, again.log
    assert set(again.computed) == set(STAGES)
    assert again.result["rows"] == undisturbed.ended.result["rows"]
    names, rows = undisturbed.ended.result["values"]
    assert again.result["values"] == [[*names, *names], 2 * rows]
