"""Drivers that are stopped with a savepoint, killed while they take it, or ended by failed checkpoints."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, RETAINED
from airflow_checkpoint_provider.protocol.events import Request
from tests.integration.runtime.conftest import Undisturbed
from tests.integration.runtime.savepoint_requests import ask, begun, found, resume, target, whole
from tests.integration.runtime.totals import CLEAN, NAMED, PRICED, TOTALS, stages
from tests.support.launches import Launches
from tests.support.runs import Crash, Ended, Home
from tests.support.waiting import wait_until

OVER = 79


def has_stages(home: Home) -> bool:
    return bool(stages(home.coordinator().state))


def run_and_ask(
    home: Home, kind: str, crash: Crash | None = None, begun: Callable[[Home], object] = begun
) -> tuple[int, Ended]:
    with home.started(crash) as running:
        number = ask(home, running, kind, begun)
        return number, running.wait()


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_first_stream stops and restores, test_savepoints continues from a savepoint
@pytest.mark.timeout(1800)
def test_stopped_job_starts_again_only_after_a_restore(home: Home, undisturbed: Undisturbed) -> None:
    number, ended = run_and_ask(home, "suspend_savepoint", begun=has_stages)
    assert ended.code == OVER, ended.log
    last = ended.log.strip().splitlines()[-1]
    stopped = found(home, number)
    assert f"STOPPED totals: suspended with savepoint {stopped.target}, taken at " in last
    assert last.endswith("checkpoints restore totals --from latest  [CKP133]")
    state = home.coordinator().state
    assert [(attempt.outcome, attempt.exit_code) for attempt in state.attempts] == [("suspended", OVER)]
    assert (stopped.status, stopped.published) == (RETAINED, True)
    held = stages(state)
    assert {uid for uid in whole(home, number) if uid in (CLEAN, NAMED, PRICED, TOTALS)} == held
    assert held < {CLEAN, NAMED, PRICED, TOTALS}, "nothing of the script ran after it"

    refused = home.run()
    assert refused.code == 3
    assert "totals is suspended since" in refused.log

    resume(home)
    again = home.run()
    assert again.code == 0, again.log
    assert set(again.computed) == {CLEAN, NAMED, PRICED, TOTALS} - held
    assert home.report() == undisturbed.report


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_stop_requested_at_the_end_suspends_the_job(home: Home) -> None:
    """The driver sleeps where only its end is left."""
    with home.started(("stop", "value/rows/set-4")) as running:
        wait_until(running.is_stopped, 300, running.said)
        number = home.coordinator().trigger(
            Request(token="a person", kind="suspend_savepoint", folder=target(home), timeout_s=60.0, origin="cli")
        )
        running.send(signal.SIGCONT)
        ended = running.wait()
    assert ended.code == OVER, ended.log
    assert "taken at the end of the script" in ended.log
    assert found(home, number).status == RETAINED
    assert home.coordinator().state.attempts[-1].outcome == "suspended"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_job_goes_on_if_the_savepoint_of_a_stop_fails(home: Home, undisturbed: Undisturbed) -> None:
    Path(home.folder, "saved").write_text("no directory")
    number, ended = run_and_ask(home, "suspend_savepoint")
    assert ended.code == 0, ended.log
    assert "was not stopped: savepoint" in ended.log
    assert found(home, number).status == ABORTED
    assert home.coordinator().state.suspended is None
    assert home.report() == undisturbed.report


# -- killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_savepoint_is_published_by_the_next_attempt_after_a_kill_before_publication(
    home: Home, undisturbed: Undisturbed
) -> None:
    number, ended = run_and_ask(home, "savepoint", ("kill", "asked/1/completed"))
    assert ended.code == -9, ended.log
    assert (found(home, number).status, found(home, number).published) == (RETAINED, False)
    again = home.run()
    assert again.code == 0, again.log
    assert found(home, number).published
    assert whole(home, number)
    assert home.report() == undisturbed.report


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", ["before-copy", "copied", "before-acknowledgement", "acknowledged", "sealed"])
def test_savepoint_is_deleted_after_a_kill_before_its_completion(
    home: Home, undisturbed: Undisturbed, point: str
) -> None:
    number, ended = run_and_ask(home, "savepoint", ("kill", f"asked/1/{point}"))
    assert ended.code == -9, ended.log
    again = home.run()
    assert again.code == 0, again.log
    assert found(home, number).status == ABORTED
    assert not any(path.is_file() for path in Path(home.folder, "saved").rglob("*"))
    assert home.report() == undisturbed.report


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", ["before-publishing", "published", "before-confirmation", "confirmed"])
def test_savepoint_is_complete_after_a_kill_after_its_completion(
    home: Home, undisturbed: Undisturbed, point: str
) -> None:
    number, ended = run_and_ask(home, "savepoint", ("kill", f"asked/1/{point}"))
    assert ended.code == -9, ended.log
    assert home.run().code == 0
    assert found(home, number).published
    assert whole(home, number)
    assert home.report() == undisturbed.report


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_job_is_suspended_after_a_kill_when_the_stop_was_written(home: Home, undisturbed: Undisturbed) -> None:
    number, ended = run_and_ask(home, "suspend_savepoint", ("kill", "asked/1/completed"), has_stages)
    assert ended.code == -9, ended.log
    assert home.coordinator().state.suspended
    assert home.run().code == 3
    resume(home)
    assert home.run().code == 0
    assert whole(home, number)
    assert home.report() == undisturbed.report


# -- too many failures -------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_checkpointer_objects.py counts failures without Spark; test_proofs.py ends a driver at once, too
@pytest.mark.timeout(1800)
def test_job_ends_after_more_failures_than_are_tolerated(tmp_path: Path) -> None:
    """Somebody's checkpoint expires, and none is tolerated."""
    home = Home(tmp_path / "home")
    launches = Launches(home.store)
    confs = {
        **launches.plan(),
        "spark.checkpointed.checkpointing": json.dumps(CheckpointConfig(tolerable_failures=0).to_json()),
    }
    with home.started(("linger", "attempt/attached"), confs=confs) as running:
        wait_until(lambda: "LINGERS" in running.said(), 300, running.said)
        number = launches.coordinator().trigger(Request(token="a task", timeout_s=60.0, origin="task"))
        launches.coordinator().abort(number, "expired", details="nobody came")
        ended = running.wait()
    assert ended.code == 1, ended.log
    last = ended.log.strip().splitlines()[-1]
    assert (
        f"1 checkpoint failed in a row, but tolerable_failures is 0. Last failure: chk-{number} expired: nobody came"
        in last
    )
    assert last.endswith("[CKP211]")
    assert launches.ends() == [("failed", 1)]
