"""On YARN in cluster mode a driver dies, or its application master; the next attempt goes on. Runs on Linux."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.state import State
from tests.integration.runtime.totals import CLEAN, NAMED, PRICED, TOTALS
from tests.support.clusters import SMALL
from tests.support.jars import NoJars
from tests.support.launches import Launches
from tests.support.runs import Crash, Ended, Home
from tests.support.waiting import wait_until
from tests.support.yarn import Yarn

pytestmark = [
    pytest.mark.slow,  # test_launched.py lets a second driver of a launch begin
    pytest.mark.timeout(1800),
]
PATIENCE = 400  # seconds for one step of a driver
STAGES = "../e2e/jobs/stages.py"
ONCE, TWICE = {"spark.yarn.maxAppAttempts": "1"}, {"spark.yarn.maxAppAttempts": "2"}


@pytest.fixture
def yarn(tmp_path: Path) -> Iterator[Yarn]:
    try:
        started = Yarn(tmp_path / "yarn")
    except NoJars as error:
        pytest.skip(str(error))
    with started:
        yield started


def home_on(yarn: Yarn, folder: Path, script: str) -> Home:
    home = Home(folder, script)
    home.env |= yarn.environment
    home.confs |= {
        **yarn.confs,
        **SMALL,
        "spark.submit.deployMode": "cluster",
        "spark.yarn.appMasterEnv.CHECKPOINT_HEARTBEAT_SECONDS": "1",
    }
    return home


def run(home: Home, yarn: Yarn, confs: Mapping[str, str], crash: Crash | None = None) -> Ended:
    """Run one application. What its drivers printed is the output of their containers."""
    ended = home.run(crash, submit=True, confs=confs)
    return Ended(ended.code, f"{ended.log}\n{yarn.output()}", ended.events)


def test_killed_driver_is_followed_by_one_that_reuses_its_stages(yarn: Yarn, tmp_path: Path) -> None:
    home = home_on(yarn, tmp_path / "home", "totals.py")
    launches = Launches(home.store)
    killed = run(home, yarn, {**launches.plan(), **ONCE}, ("kill", "stage/priced/rows-written"))
    assert (killed.code, set(killed.computed)) == (1, {CLEAN, NAMED, PRICED}), killed.log
    ended = run(home, yarn, {**launches.plan(2), **ONCE})
    assert (ended.code, set(ended.computed)) == (0, {PRICED, TOTALS}), ended.log
    assert ended.result["values"] == [[CLEAN, NAMED, PRICED, TOTALS], 3 * 16_000 + 7]
    assert sum(row["sales"] for row in home.report()) == 16_000
    assert launches.ends() == [(None, None), ("finished", 0)]


def test_second_attempt_of_the_application_goes_on_with_the_same_launch(yarn: Yarn, tmp_path: Path) -> None:
    home = home_on(yarn, tmp_path / "home", STAGES)
    launches = Launches(home.store)
    gate = home.out / "closed-two"
    home.out.mkdir()
    gate.touch()
    with home.started(submit=True, confs={**launches.plan(), **TWICE}) as running:
        wait_until((home.out / "at-two-1").exists, PATIENCE, lambda: running.said() + yarn.output())
        wait_until(lambda: stored(launches.state()) == {"one"}, PATIENCE, yarn.output)
        (running_there,) = yarn.applications()
        (master,) = yarn.masters(running_there["id"])
        os.kill(master, signal.SIGKILL)
        wait_until((home.out / "at-two-2").exists, PATIENCE, lambda: running.said() + yarn.output())
        gate.unlink()
        ended = running.wait()
    assert ended.code == 0, ended.log + yarn.output()
    state = launches.state()
    assert [attempt.launch for attempt in state.attempts] == [launches.number] * 2
    assert launches.last().outcome == "finished"
    assert launches.beat().reused == ("one",)
    assert [Ended(0, "", events).computed for events in by_attempt(ended.events)] == [["one"], ["two", "three"]]
    (application,) = yarn.applications()
    assert (application["finalStatus"], len(yarn.attempts(application["id"]))) == ("SUCCEEDED", 2)


def stored(state: State) -> set[str]:
    """Return the stages that completed checkpoints hold."""
    return {one.uid for checkpoint in state.retained for one in checkpoint.states if one.kind == "stage"}


def by_attempt(events: Path) -> list[Path]:
    """Move Spark's event log of each attempt of an application into a folder of its own."""
    folders = []
    for number in (1, 2):
        folder = events / str(number)
        (log,) = [*events.glob(f"application_*_{number}"), *events.glob(f"application_*_{number}.inprogress")]
        folder.mkdir()
        log.rename(folder / log.name)
        folders.append(folder)
    return folders
