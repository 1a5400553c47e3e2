"""Drivers that live longer than they should: stopped and woken, without a parent, told to end, or two at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from tests.integration.runtime.totals import VALUES, by_shop, report
from tests.integration.runtime.zombies import wakes_up_fenced
from tests.support.launches import Launches
from tests.support.runs import Home, Running
from tests.support.waiting import wait_until

PATIENCE = 400  # seconds until a driver is where it shall be; it takes seven
SET_CHILD_SUBREAPER = 36
STARTER = (sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])")


@pytest.fixture
def launches(home: Home) -> Launches:
    return Launches(home.store)


def lingering(running: Running) -> int:
    """Wait until the driver lingers; its process id."""
    wait_until(lambda: "LINGERS" in running.said(), PATIENCE, running.said)
    line = next(line for line in running.said().splitlines() if line.startswith("LINGERS"))
    return int(line.split()[-1])


# -- zombies -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_loop_kills.py lets a driver sleep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("stage/named/writing", id="writing rows"),
        pytest.param("checkpoint/1/acknowledged", id="before sealing"),
    ],
)
def test_driver_that_slept_ends_after_it_was_replaced(home: Home, launches: Launches, point: str) -> None:
    with home.started(("stop", point), confs=launches.plan()) as zombie:
        wait_until(zombie.is_stopped, PATIENCE, zombie.said)
        successor = home.run(confs=launches.plan(2))
        assert successor.code == 0, successor.log
        wakes_up_fenced(zombie, launches, by=2)
    assert launches.ends() == [(None, None), ("finished", 0)]
    assert successor.result["values"] == VALUES
    assert by_shop(home) == report()


# -- parents -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def adopts_orphans() -> Iterator[None]:
    """Orphans become this process's children, so that it learns their exit codes."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.slow  # tests/unit/spark/attempt/test_watch.py: an attempt ends when it is replaced
@pytest.mark.usefixtures("adopts_orphans")
@pytest.mark.timeout(1800)
def test_driver_without_parent_lives_until_it_is_replaced(home: Home, launches: Launches) -> None:
    with home.started(("linger", "value/rows/set-1"), submit=True, confs=launches.plan(), below=STARTER) as running:
        lingering(running)
        jvm = child_of(running.process.pid)
        running.process.kill()
        running.process.wait(60)
        before = launches.beat().counter
        wait_until(lambda: launches.beat().counter > before, say=running.said)
        assert launches.state().running(), "nobody needs its place: it goes on"
        launches.plan(2)
        assert os.waitstatus_to_exitcode(os.waitpid(jvm, 0)[1]) == ExitCode.OVER
        assert "FENCED: attempt 1 of etl.totals was replaced by try 2" in running.said()


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


# -- told to end -------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_rows_that_are_proved_are_saved ends drivers in this way, too
@pytest.mark.timeout(1800)
def test_sigterm_writes_the_end_of_the_attempt(home: Home, launches: Launches) -> None:
    with home.started(("linger", "value/rows/set-1"), confs=launches.plan()) as running:
        os.kill(lingering(running), signal.SIGTERM)
        ended = running.wait()
    assert ended.code == 128 + signal.SIGTERM
    assert launches.ends() == [("failed", 143)]


@pytest.mark.slow  # tests/unit/spark/attempt/test_watch.py hands the stop on with its reason
@pytest.mark.timeout(1800)
def test_driver_ends_when_its_launch_is_stopped(home: Home, launches: Launches) -> None:
    with home.started(("linger", "value/rows/set-1"), confs=launches.plan()) as running:
        lingering(running)
        launches.stop()
        ended = running.wait()
    assert ended.code == ExitCode.OVER
    assert "attempt 1 of etl.totals ends: stopped: etl.totals: the task was killed" in ended.log
    assert launches.ends() == [("cancelled", 79)]


@pytest.mark.slow  # test_ends.py, with a session that only looks stopped
@pytest.mark.timeout(1800)
def test_session_stopped_inside_the_block_fails_the_attempt(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "one.py")
    text = home.script.read_text()
    home.script.write_text(text.replace('        print("RESULT"', '        job.spark.stop()\n        print("RESULT"'))
    ended = home.run()
    assert ended.code == ExitCode.REFUSED
    assert "spark.stop() was called inside `with CheckpointedJob()`: call it after the block" in ended.log
    assert [attempt.outcome for attempt in home.coordinator().state.attempts] == ["failed"]


# -- two at once -------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_starts.py, and tests/unit/spark/attempt/test_start.py, in one process
@pytest.mark.timeout(1800)
def test_second_script_beside_a_living_script_is_refused(home: Home) -> None:
    with home.started(("linger", "value/rows/set-1")) as first:
        pid = lingering(first)
        second = home.run()
        assert second.code == ExitCode.REFUSED
        refusal = next(line for line in second.log.splitlines() if "[CKP131]" in line)
        assert f"totals is already running: process {pid} on " in refusal
        assert "(this is process " in refusal
        assert first.process.poll() is None, "the living one is not fenced"


@pytest.mark.slow  # the model's scenario two_scripts starts two
@pytest.mark.timeout(1800)
def test_one_of_two_scripts_started_at_once_is_refused(home: Home) -> None:
    with home.started() as first, home.started() as second:
        ended = [first.wait(), second.wait()]
    assert sorted(each.code for each in ended) == [0, ExitCode.REFUSED]
    loser = max(ended, key=lambda each: each.code)
    winner = first if ended[0].code == 0 else second
    assert f"process {winner.process.pid} on " in loser.log
