"""The host on which the services run drivers: what it has, and what it ends."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.runs import CRASH
from tests.support.services.hosts import Host
from tests.support.services.submission import Submission


def test_variables_are_those_of_a_machine(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_TEST", "1")
    ran = host.run(["env"], {"OF_THE_REQUEST": "1"})
    assert ran.wait() == 0
    names = {line.partition("=")[0] for line in ran.lines()}
    assert {"PATH", "SPARK_HOME", "OF_THE_REQUEST"} <= names
    assert not {name for name in names if "TEST" in name or "AIRFLOW" in name or "VIRTUAL" in name}


def test_programs_are_those_of_its_own_path(host: Host) -> None:
    with pytest.raises(FileNotFoundError):
        host.run(["airflow"], {})  # it is in the path of the tests
    assert not host.started


def test_number_of_a_group_that_is_gone_may_be_of_another(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = host.run(["true"], {})
    ran.wait()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        monkeypatch.setattr(type(ran), "pid", other.pid)  # as after all numbers have been given once
        ran.kill()
        ran.end(0)
        assert other.poll() is None
        other.kill()


def test_group_outlives_its_first_process(host: Host) -> None:
    ran = host.run(["sh", "-c", "sleep 600 & echo HERE"], {})
    ran.wait()
    assert len(ran.left()) == 1
    ran.end(0)
    assert ran.left() == []


def test_nothing_starts_after_the_end(host: Host) -> None:
    host.__exit__()
    with pytest.raises(RuntimeError, match="gone"):
        host.run(["true"], {})


def test_driver_is_crashed_once_at_a_named_step(host: Host, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("")
    host.crash_next("kill", "stage/a/rows-written")
    first, second = (host.submit(Submission(application=f"local://{app}", arguments=["x"])) for _ in range(2))
    assert first.command[-5:] == [str(CRASH), "kill", "stage/a/rows-written", str(app), "x"]
    assert second.command[-2:] == [f"local://{app}", "x"]
