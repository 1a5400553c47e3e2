"""A driver is killed while it computes the parts of a stage: each part is computed once, and each row is there once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from tests.jobs.in_parts import DAYS, SALES
from tests.support.garbage import orphans
from tests.support.launches import Launches
from tests.support.runs import Ended, Home
from tests.support.s3server import S3Server
from tests.support.waiting import wait_until

PATIENCE = 400  # seconds until a driver is where it shall be; it takes seven
SHOPS = 3
PRICES = {day: sum(3 * i for i in range(SALES) if i % 7 and i % 5 == place) for place, day in enumerate(DAYS)}
"""The result, day by day."""
COMPUTED = {
    "stage 'clean'",
    *(f"part {number} of {len(DAYS)} of stage 'days'" for number in range(1, len(DAYS) + 1)),
    *(f"part {number} of {SHOPS} of stage 'shops'" for number in range(1, SHOPS + 1)),
    "stage 'totals'",
}
AT_A_PART = ("writing", "rows-written", "rows-counted", "plan-kept")
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
STEPS = [
    *(f"stage/{part}/{step}" for part in ("days.2", "days.5", "shops.3") for step in AT_A_PART),
    *(
        f"checkpoint/{number}/{step}" for number in (3, 6) for step in AT_A_CHECKPOINT
    ),  # of the second part, of the last one
    *(f"retire/2/{step}" for step in ("before-condemning", "condemned", "deleted", "before-forgetting", "forgotten")),
]


@pytest.fixture
def in_parts(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """The job in parts; its checkpoints are in a folder, or in a bucket, where a test is parametrized so."""
    s3: S3Server | None = request.getfixturevalue("s3") if getattr(request, "param", "") == "S3" else None
    return Home(tmp_path / "home", "in_parts.py", s3=s3)


def computed(ended: Ended) -> set[str]:
    """Return the stages and parts for which tasks ran."""
    return {name for name in ended.tasks if name in COMPUTED}


def held(home: Home) -> set[str]:
    """Return the stages and parts that the restore point holds."""
    state = home.coordinator().state
    point = state.restore_point()
    checkpoint = state.checkpoint(point.id) if point else None
    found = set[str]()
    for entry in checkpoint.states if checkpoint else ():
        if entry.parts:
            found |= {f"part {n} of {entry.parts.total} of stage '{entry.uid}'" for n in range(1, entry.parts.done + 1)}
        elif entry.kind == "stage":
            found.add(f"stage '{entry.uid}'")
    return found


def check(home: Home, ended: Ended) -> None:
    """Compare rows and value with those of an undisturbed run. Nothing is left that nobody refers to."""
    assert ended.code == 0, ended.log
    assert {row["day"]: row["price"] for row in home.report()} == PRICES
    assert ended.result["sales"] == list(range(SALES))
    assert ended.result["counted"] == len(DAYS)
    coordinator = home.coordinator()
    assert orphans(coordinator) == ()
    assert [run.outcome for run in coordinator.state.runs] == ["finished"]


def survive(home: Home, *points: str) -> None:
    """Kill the driver at each of these points, and let the last one end. No part that is stored is computed again."""
    kept = set[str]()
    for point in points:
        killed = home.killed(point)
        assert not kept & computed(killed)
        kept = held(home)
    ended = home.run()
    check(home, ended)
    assert computed(ended) == COMPUTED - kept


@pytest.mark.slow  # test_parts.py: retries in one process; test_loop_kills.py kills a driver
@pytest.mark.timeout(1800)
def test_each_part_is_computed_once_after_a_kill(in_parts: Home) -> None:
    survive(in_parts, "stage/days.3/writing")


@pytest.mark.slow  # the one above
@pytest.mark.timeout(1800)
def test_each_part_is_computed_once_after_many_kills(in_parts: Home) -> None:
    """While rows are written, when a part is sealed and nobody knows, and in the parts by column."""
    survive(
        in_parts, "stage/days.3/writing", "checkpoint/3/sealed", "stage/shops.2/rows-written", "stage/shops.2/writing"
    )


@pytest.mark.slow  # the one above
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("in_parts", "point"),
    [
        *(("local", point) for point in STEPS),
        *(("S3", point) for point in STEPS if "days.2" in point or point.endswith("/sealed")),
    ],
    indirect=["in_parts"],
)
def test_each_part_is_computed_once_after_a_kill_at_each_step(in_parts: Home, point: str) -> None:
    survive(in_parts, point)


@pytest.mark.slow  # the first one; zombies of stages are in test_loop_kills
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", ["stage/days.3/writing", "stage/days.3/rows-written", "checkpoint/4/acknowledged"])
def test_zombie_that_writes_a_part_beside_its_successor_changes_nothing(in_parts: Home, point: str) -> None:
    home, launches = in_parts, Launches(in_parts.store)
    with home.started(("stop", point), confs=launches.plan()) as zombie:
        wait_until(zombie.is_stopped, PATIENCE, zombie.said)
        with home.started(("stop", "stage/days/rows-written"), confs=launches.plan(2)) as successor:
            wait_until(successor.is_stopped, PATIENCE, successor.said)  # both have written the same part
            zombie.send(signal.SIGCONT)
            assert zombie.wait().code == ExitCode.OVER, zombie.said()
            successor.send(signal.SIGCONT)
            ended = successor.wait()
    assert ended.code == 0, ended.log
    assert {row["day"]: row["price"] for row in home.report()} == PRICES
    assert ended.result["counted"] == len(DAYS)
