"""The command line drives a running job: savepoint, stop, and a restart from the savepoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from tests.support.drivers import environment
from tests.support.runs import PATIENCE, Home
from tests.support.waiting import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", "turns.py")


def checkpoints(home: Home, *arguments: str, code: int = 0) -> Any:
    """What the command prints as JSON; its last line of errors, if it shall not succeed."""
    command = [sys.executable, "-m", "airflow_checkpoint_provider.cli.main", "--root", home.store.uri, *arguments]
    done = subprocess.run(
        [*command, "-o", "json"], env=environment(CHECKPOINT_HEARTBEAT_SECONDS="1"), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr.splitlines()[-1]


@pytest.mark.slow  # test_first_stream stops and restores by the commands
@pytest.mark.timeout(1800)
def test_command_line_takes_a_savepoint_stops_restores_and_disposes(home: Home) -> None:
    with home.started() as running:
        wait_until(lambda: "TURN 2" in running.said(), PATIENCE, running.said)
        made = checkpoints(home, "savepoint", "turns", "--name", "by hand")
        assert checkpoints(home, "verify", made["pointer"])["files"] > 0
        assert running.process.poll() is None, "the job goes on"
        stopped = checkpoints(home, "stop", "turns", "--yes")
        ended = running.wait()
    assert (ended.code, stopped["kind"], stopped["state"]) == (ExitCode.OVER, "suspend_savepoint", "completed")
    assert stopped["pointer"] in ended.log
    (job,) = checkpoints(home, "jobs")
    assert job["state"] == "suspended"
    assert int(job["next_start"].removeprefix("chk-")) >= stopped["id"]
    assert "[CKP130]" in checkpoints(home, "trigger", "turns", code=3)

    checkpoints(home, "restore", "turns", "--from", made["pointer"], "--yes")
    assert "may still start from savepoint" in checkpoints(home, "dispose", made["pointer"], "--yes", code=3)
    home.out.mkdir()
    again = home.run()
    assert (again.code, again.computed) == (0, []), again.log
    assert again.result == {"restored": made["id"], "rows": 1000, "attempt": 2}

    for savepoint in (made, stopped):
        assert checkpoints(home, "dispose", savepoint["pointer"], "--yes")["history"]
        assert "was disposed of at" in checkpoints(home, "verify", savepoint["pointer"], code=4)
    kept = [checkpoint["kind"] for checkpoint in checkpoints(home, "list", "turns") if checkpoint["pointer"]]
    assert set(kept) == {"checkpoint"}
