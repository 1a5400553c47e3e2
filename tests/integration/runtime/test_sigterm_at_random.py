"""SIGTERM at random moments of drivers: no row is lost or doubled, each is gone in time, and proved rows are saved. Runs on Linux."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.runtime.conftest import Undisturbed
from tests.integration.runtime.totals import check, stages
from tests.support.processes import alive
from tests.support.runs import PATIENCE, Ended, Home, Running
from tests.support.waiting import wait_until

KILLS, PARTS = 50, 4
KILLS_OF_A_RUN = 5  # then a driver may finish it
EARLY = 0.2  # of the signals come while the driver starts
PROVED_BEFORE = 1.0  # seconds before the signal
GONE = 5.0  # seconds; after them, Airflow sends SIGKILL
ENDED = 128 + signal.SIGTERM
ATTACHED, ENDING = "attempt/attached", "attempt/before-end"


@dataclass(frozen=True)
class Points:
    """The points that a driver passes, with their times."""

    file: Path

    def passed(self) -> dict[str, float]:
        lines = self.file.read_text().split("\n")[:-1] if self.file.exists() else []
        return {name: float(at) for at, name in map(str.split, lines)}

    def stages(self, step: str, before: float = float("inf")) -> set[str]:
        """Return the stages that have passed a step of theirs before a moment."""
        names = [name.split("/") for name, at in self.passed().items() if at < before]
        return {name[1] for name in names if name[0] == "stage" and name[2] == step}


@dataclass(frozen=True)
class Life:
    """The seconds that an undisturbed driver takes until it is attached, and from then to its end."""

    start: float
    work: float

    @classmethod
    def measured(cls, home: Home) -> Life:
        points, began = Points(home.folder / "points"), time.time()
        ended = home.run(("time", str(points.file)))
        assert ended.code == 0, ended.log
        attached, now = points.passed()[ATTACHED], time.time()
        return cls(attached - began, now - attached)


@dataclass(frozen=True)
class Told:
    """A driver that got the signal ``at`` this time; None: it had ended before."""

    ended: Ended
    points: Points
    at: float | None


def told(home: Home, number: int, life: Life, chance: random.Random) -> Told:
    """Start a driver, and send it SIGTERM at a random moment: alone, or with its process group, as Airflow does."""
    early, group, submit = (chance.random() < share for share in (EARLY, 0.5, 0.5))
    wait_s = chance.uniform(0, life.start if early else 1.1 * life.work)
    points = Points(home.folder / f"points-{number}")
    with home.started(("time", str(points.file)), submit=submit) as running:
        if not early:
            wait_until(lambda: ATTACHED in points.passed() or over(running), PATIENCE, running.said, every=0.05)
        time.sleep(wait_s)
        if over(running):
            return Told(running.wait(), points, None)
        drivers, at = running.pythons(), time.time()
        if group or not drivers:
            running.send(signal.SIGTERM)
        else:
            os.kill(drivers[0], signal.SIGTERM)
        wait_until(lambda: not any(map(alive, drivers)), GONE, running.said, every=0.02)
        return Told(running.wait(), points, at)


def over(running: Running) -> bool:
    return running.process.poll() is not None


def check_saved(home: Home, driver: Told) -> None:
    """What was proved in time is saved, and the end is in order."""
    passed = driver.points.passed()
    if driver.at is None or ATTACHED not in passed or ENDING in passed:
        return
    state = home.coordinator().state
    proved = driver.points.stages("rows-counted", driver.at - PROVED_BEFORE)
    assert proved <= stages(state), driver.ended.log
    assert driver.ended.code == ENDED, driver.ended.log
    assert (state.attempts[-1].outcome, state.attempts[-1].exit_code) == ("failed", ENDED), driver.ended.log


@pytest.mark.slow  # test_rows_that_are_proved_are_saved ends a driver
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_signals_lose_no_row_and_nothing_that_is_proved(
    tmp_path: Path, undisturbed: Undisturbed, part: int
) -> None:
    seed = os.environ.get("SIGTERM_SEED") or secrets.token_hex(4)
    print(f"SIGTERM_SEED={seed}")
    chance, life = random.Random(f"{seed} {part}"), Life.measured(Home(tmp_path / "measured"))
    kills, saved, runs = 0, 0, 0
    while kills < KILLS:
        runs += 1
        home, held = Home(tmp_path / f"run-{runs}"), set[str]()
        for number in range(KILLS_OF_A_RUN):
            driver = told(home, number, life, chance)
            assert not driver.points.stages("rows-written") & held, driver.ended.log
            check_saved(home, driver)
            held = stages(home.coordinator().state)
            kills, saved = kills + (driver.at is not None), saved + len(held)
            if home.coordinator().state.runs and home.coordinator().state.runs[-1].outcome == "finished":
                break
        else:
            driver = Told(home.run(), driver.points, None)
            assert driver.ended.code == 0, driver.ended.log
            assert not set(driver.ended.computed) & held, driver.ended.log
        check(home, driver.ended, undisturbed)
    print(f"{kills} signals in {runs} runs")
    assert saved
