"""Drivers of a job with loops sleep, or are killed at each of their steps: rows, values, frames and numbers are those of an undisturbed
run.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from tests.integration.runtime.savepoint_requests import ask, found, resume, whole
from tests.integration.runtime.zombies import wakes_up_fenced
from tests.support.launches import Launches
from tests.support.runs import PATIENCE, Home
from tests.support.waiting import wait_until

TURN, BARRIER = ("before", "finished"), ("before", "frames-written", "taken-over", "begun")
POINTS = [
    *(f"loop/rank/turn-{number}/{step}" for number in range(1, 6) for step in TURN),
    *(f"loop/rank/barrier-{number}/{step}" for number in (1, 2, 3) for step in BARRIER),
    *(f"loop/days/turn-{number}/{step}" for number in (1, 2) for step in TURN),
    *(f"loop/days/barrier-{number}/{step}" for number in (1, 2) for step in BARRIER),
    *(f"frame/ranks-{number}/written" for number in (1, 2, 3)),
    *(f"frame/total-{number}/written" for number in (1, 2)),
]
WRITES = (1, 3, 4, 7, 9)
"""Of the nine: before the loops, in the turn of a barrier, in the turn after it, in an item of the history, after the loops."""
OTHERS = [
    *(
        f"stage/{uid}/{step}"
        for uid in ("ranks", "total", "sums-2", "sums-3")
        for step in ("rows-written", "rows-counted")
    ),
    *(f"sink/write-{number}/{step}" for number in WRITES for step in ("before", "staged", "prepared")),
    *(f"sink/commit-{number}/{step}" for number in WRITES for step in ("before", "published", "done")),
    *(f"checkpoint/{number}/{step}" for number in range(1, 12) for step in ("acknowledged", "sealed", "completed")),
]
CHAIN = ("stage/sums-3/rows-counted", "loop/days/barrier-1/taken-over")
IN_S3 = [point for point in POINTS if point.startswith(("loop/rank/barrier-2", "loop/days/barrier-1", "frame/"))]


def rank(turns: int) -> list[list[int]]:
    """The ranks after some turns, by plain Python."""
    edges = [(number % 4, number % 3) for number in range(12)]
    ranks = dict.fromkeys(range(4), 1)
    for _ in range(turns):
        sums = dict.fromkeys(range(4), 0)
        for src, dst in edges:
            sums[dst] += ranks[src]
        ranks = {node: ranks[node] + sums[node] for node in ranks}
    return [[node, ranks[node]] for node in sorted(ranks)]


def named(name: str, value: Any, ranks: list[list[int]], times: int = 1) -> list[dict[str, Any]]:
    return [{name: value, "id": node, "rank": times * number} for node, number in ranks]


def published(turns: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of each sink after a run with so many turns."""
    history = [row for done in range(turns + 1) for row in named("turn", done - 1, rank(done))]
    days = (("mon", 1), ("tue", 2), ("end", 2))
    report = [row for day, times in days for row in named("day", day, rank(turns), times)]
    return {"history": sorted(history, key=str), "report": sorted(report, key=str)}


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Home:
    s3 = request.getfixturevalue("s3") if getattr(request, "param", "") == "s3" else None
    return Home(tmp_path / "home", "looped.py", s3=s3)


@pytest.fixture
def launches(home: Home) -> Launches:
    return Launches(home.store)


def is_once(home: Home, turns: int) -> None:
    """Readers see each row at most once, and no row that the run does not come to."""
    for sink, rows in published(turns).items():
        seen = [str(row) for row in home.published(sink)]
        assert len(seen) == len(set(seen))
        assert set(seen) <= set(map(str, rows))


def check(home: Home, turns: int = 5) -> None:
    check_rows(home, turns)
    assert home.staged() == []


def check_rows(home: Home, turns: int) -> None:
    for sink, rows in published(turns).items():
        assert home.published(sink) == rows
    for turn in range(1, turns + 1):
        numbered = [[row["id"], row["rank"]] for row in home.published(f"numbered/{turn}")]
        assert sorted(numbered) == rank(turn)
    assert not home.published(f"numbered/{turns + 1}")


def survive(home: Home, *points: str, turns: int = 5) -> None:
    for point in points:
        home.killed(point)
        is_once(home, turns)
    ended = home.run()
    assert ended.code == 0, ended.log
    assert ended.result == {"turns": turns, "ranks": rank(turns)}
    check(home, turns)


@pytest.mark.timeout(900)
def test_run_with_loops_survives_a_sleep_and_a_kill(home: Home, launches: Launches) -> None:
    """The first driver sleeps before its rows are published. The second one dies in the last turn, whose stage is stored."""
    home.env |= {"TURNS": "2", "EVERY": "1"}
    with home.started(("stop", "sink/commit-1/before-publication"), confs=launches.plan(1)) as asleep:
        wait_until(asleep.is_stopped, PATIENCE, asleep.said)
        home.killed("stage/sums-1/rows-counted", confs=launches.plan(2))
        is_once(home, turns=2)
        assert home.run(confs=launches.plan(3)).result == {"turns": 2, "ranks": rank(2)}
        check(home, turns=2)
        wakes_up_fenced(asleep, launches, by=3)
    assert launches.ends() == [(None, None), (None, None), ("finished", 0)]
    check_rows(home, turns=2)  # the script slept beside the commit: what it was staging then, the next run deletes


@pytest.mark.slow  # test_run_with_loops_survives_a_sleep_and_a_kill
@pytest.mark.timeout(600)
def test_run_with_loops_survives_two_kills(home: Home) -> None:
    """In the middle of a turn whose stage is stored, and between the barrier of an item and its checkpoint."""
    survive(home, *CHAIN)


@pytest.mark.slow  # test_run_with_loops_survives_a_sleep_and_a_kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("home", "point"),
    [*(("local", point) for point in (*POINTS, *OTHERS)), *(("s3", point) for point in IN_S3)],
    indirect=["home"],
)
def test_run_with_loops_survives_a_kill_at_any_step(home: Home, point: str) -> None:
    survive(home, point)


@pytest.mark.slow  # test_run_with_loops_survives_a_sleep_and_a_kill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("every", [1, 3, 10])
def test_run_with_loops_survives_a_chain_of_kills(home: Home, every: int) -> None:
    home.env["EVERY"] = str(every)
    survive(
        home, "loop/rank/turn-2/finished", "sink/write-1/prepared", "frame/ranks-1/written", "loop/days/barrier-1/begun"
    )


@pytest.mark.slow  # test_run_with_loops_survives_a_sleep_and_a_kill
@pytest.mark.timeout(600)
def test_steps_are_all_steps_of_an_undisturbed_run(home: Home) -> None:
    points = home.folder / "points"
    ended = home.run(("record", str(points)))
    assert ended.code == 0, ended.log
    passed = set(points.read_text().split())
    assert sorted(point for point in passed if point.startswith(("loop/", "frame/"))) == sorted(POINTS)
    assert not set(OTHERS) - passed
    check(home)


@pytest.mark.slow  # test_run_with_loops_survives_a_sleep_and_a_kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "point", ["loop/rank/turn-3/before", "loop/rank/barrier-2/taken-over", "loop/days/barrier-1/before"]
)
def test_driver_that_slept_changes_nothing_after_it_was_replaced(home: Home, launches: Launches, point: str) -> None:
    with home.started(("stop", point), confs=launches.plan(1)) as asleep:
        wait_until(asleep.is_stopped, PATIENCE, asleep.said)
        successor = home.run(confs=launches.plan(2))
        assert successor.code == 0, successor.log
        check(home)
        asleep.send(signal.SIGCONT)
        asleep.wait()
    check(home)


# -- requests ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_loops.py serves a request at the end of a turn
@pytest.mark.timeout(600)
def test_stop_is_served_at_the_end_of_a_turn(home: Home) -> None:
    """The loop itself would be stored after a thousand turns."""
    home.env["PLAIN"] = "1000"
    with home.started() as running:
        number = ask(home, running, "suspend_savepoint", lambda _: "TURN 3" in running.said())
        stopped = running.wait()
    assert stopped.code == ExitCode.OVER, stopped.log
    assert f"savepoint {found(home, number).target}" in stopped.log
    assert whole(home, number) == {"ranks", "rank", "turns"}
    resume(home)
    home.env["PLAIN"] = "4"  # they are finished already
    ended = home.run()
    assert ended.code == 0, ended.log
    assert ended.result["turns"] == ended.result["ranks"][0][1] >= 4


@pytest.mark.slow  # test_loops.py takes a checkpoint in the middle of a turn
@pytest.mark.timeout(600)
def test_stop_in_the_middle_of_a_turn_holds_the_loop_as_it_was_stored(home: Home) -> None:
    """The loop is stored after ten turns, so none of the three that are finished."""
    home.env["EVERY"] = "10"
    with home.started(("stop", "loop/rank/turn-3/before")) as running:
        wait_until(running.is_stopped, PATIENCE, running.said)
        number = ask(home, running, "suspend_savepoint")
        running.send(signal.SIGCONT)
        stopped = running.wait()
    assert stopped.code == ExitCode.OVER, stopped.log
    assert whole(home, number) >= {"edges", "history", "sums-0", "sums-2"}
    resume(home)
    ended = home.run()
    assert ended.code == 0, ended.log
    assert not {"sums-0", "sums-1", "sums-2"} & set(ended.computed)
    assert ended.result == {"turns": 5, "ranks": rank(5)}
    check(home)
