"""On YARN in cluster mode an application master dies, or YARN ends it; the next attempt goes on. Runs on Linux."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runtime.rounds import alive
from tests.integration.runtime.totals import CLEAN, NAMED, PRICED, TOTALS, stages
from tests.support.clusters import Cluster, in_cluster_mode
from tests.support.jars import NoJars
from tests.support.launches import Launches
from tests.support.runs import Ended
from tests.support.stored import stored_stages
from tests.support.waiting import wait_until
from tests.support.yarn import Yarn

pytestmark = [
    pytest.mark.slow,  # test_launched.py lets a second driver of a launch begin, and test_sigterm.py ends one
    pytest.mark.timeout(1800),
]
PATIENCE = 400  # seconds for one step of a driver
STAGES = "../e2e/jobs/stages.py"
TWICE = {"spark.yarn.maxAppAttempts": "2"}
MORE_TIME = {"yarn.nodemanager.sleep-delay-before-sigkill.ms": "11000"}


@pytest.fixture
def yarn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yarn]:
    """With the settings of the parameter, if there is one."""
    try:
        started = Yarn(tmp_path / "yarn", getattr(request, "param", None))
    except NoJars as error:
        pytest.skip(str(error))
    with started:
        yield started


@pytest.fixture
def cluster(yarn: Yarn) -> Cluster:
    return in_cluster_mode(yarn)


def test_second_attempt_of_the_application_goes_on_with_the_same_launch(
    cluster: Cluster, yarn: Yarn, tmp_path: Path
) -> None:
    home = cluster.home(tmp_path / "home", STAGES)
    launches = Launches(home.store)
    gate = home.out / "closed-two"
    home.out.mkdir()
    gate.touch()
    with home.started(confs={**launches.plan(), **TWICE}) as running:
        wait_until(lambda: alive(running) and (home.out / "at-two-1").exists(), PATIENCE, running.said)
        wait_until(lambda: stored_stages(launches.state()) == {"one"}, PATIENCE, running.said)
        (running_there,) = yarn.applications()
        (master,) = yarn.masters(running_there["id"])
        os.kill(master, signal.SIGKILL)
        wait_until(lambda: alive(running) and (home.out / "at-two-2").exists(), PATIENCE, running.said)
        gate.unlink()
        ended = running.wait()
    assert ended.code == 0, ended.log
    state = launches.state()
    assert [attempt.launch for attempt in state.attempts] == [launches.number] * 2
    assert launches.last().outcome == "finished"
    assert launches.beat().reused == ("one",)
    assert [Ended(0, "", events).computed for events in by_attempt(ended.events)] == [["one"], ["two", "three"]]
    (application,) = yarn.applications()
    assert (application["finalStatus"], len(yarn.attempts(application["id"]))) == ("SUCCEEDED", 2)


@pytest.mark.parametrize("yarn", [MORE_TIME], indirect=True)
def test_driver_that_yarn_ends_saves_what_is_proved(cluster: Cluster, yarn: Yarn, tmp_path: Path) -> None:
    home = cluster.home(tmp_path / "home", "totals.py")
    launches = Launches(home.store)
    with home.started(("until-ended", f"stage/{NAMED}/rows-counted"), confs=launches.plan()) as running:
        wait_until(lambda: "WAITS at" in alive(running), PATIENCE, running.said)
        (application,) = yarn.applications()
        yarn.end(application["id"])
        ended = running.wait()
    assert launches.ends() == [("failed", 128 + signal.SIGTERM)], ended.log
    assert stages(launches.state()) == {CLEAN, NAMED}, ended.log
    ended = home.run(confs=launches.plan(2))
    assert (ended.code, set(ended.computed)) == (0, {PRICED, TOTALS}), ended.log
    assert launches.last().outcome == "finished"


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
