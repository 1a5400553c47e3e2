"""The process that the hook starts: its arguments, environment and stdin. A recorder stands in for ``spark-submit``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_checkpoint_provider.hooks.connections import ConnectionMalformed
from airflow_checkpoint_provider.hooks.spark_output import SparkOutput
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.protocol.handover import LINE_MARK

KEY = {"CHECKPOINT_SECRET_ACCESS_KEY": "tell-nobody"}


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``argv``, ``environ`` and ``stdin`` of ``spark-submit``, which then runs the application."""
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\n"
        f'cd {tmp_path}; printf "%s\\n" "$@" > argv; env > environ; readlink /proc/self/fd/0 > stdin\n'
        'for application; do :; done\neval "$application"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    yarn = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(yarn))
    return tmp_path


def test_stdin_of_the_process_is_dev_null(recorded: Path) -> None:
    CheckpointedSparkSubmitHook().submit("true")
    assert (recorded / "stdin").read_text() == "/dev/null\n"


@pytest.mark.parametrize("conn_id", ["spark_default", "cluster"])
def test_environment_reaches_the_process_and_no_argument(recorded: Path, conn_id: str) -> None:
    CheckpointedSparkSubmitHook(conn_id=conn_id, environment=KEY, env_vars={"THEIRS": "plain"}).submit("true")
    environ = (recorded / "environ").read_text().splitlines()
    assert {"CHECKPOINT_SECRET_ACCESS_KEY=tell-nobody", "THEIRS=plain"} <= set(environ)
    assert "tell-nobody" not in (recorded / "argv").read_text()


def test_process_inherits_the_environment_of_the_worker(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "1")
    CheckpointedSparkSubmitHook().submit("true")
    assert "OF_THE_WORKER=1" in (recorded / "environ").read_text().splitlines()


def test_pid_and_returncode_are_none_before_submit(recorded: Path) -> None:
    hook = CheckpointedSparkSubmitHook()
    assert (hook.pid, hook.returncode) == (None, None)


@pytest.mark.parametrize(("command", "code"), [("exit 79", 79), ("exit 3", 3), ("kill -9 $$", 137)])
def test_returncode_is_that_of_the_failed_process(recorded: Path, command: str, code: int) -> None:
    hook = CheckpointedSparkSubmitHook()
    with pytest.raises(AirflowException):
        hook.submit(command)
    assert hook.returncode == code


def test_master_and_deploy_mode_are_those_of_the_connection(recorded: Path) -> None:
    local, cluster = CheckpointedSparkSubmitHook(), CheckpointedSparkSubmitHook(conn_id="cluster")
    assert (local.master, local.deploy_mode) == ("local[2]", None)
    assert (cluster.master, cluster.deploy_mode) == ("yarn", "cluster")


def test_unreadable_connection_is_not_taken_for_yarn(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "{not json")
    with pytest.raises(ConnectionMalformed, match="spark_default"):
        CheckpointedSparkSubmitHook()


@pytest.mark.parametrize(("conn_id", "marked"), [("spark_default", True), ("cluster", False)])
def test_only_a_driver_in_client_mode_marks_its_lines(recorded: Path, conn_id: str, marked: bool) -> None:
    output = SparkOutput(print)
    CheckpointedSparkSubmitHook(conn_id=conn_id, output=output).submit("true")
    assert (f"{LINE_MARK}={output.mark}" in (recorded / "environ").read_text().splitlines()) == marked


OURS = """
import sys
from airflow.sdk.log import configure_logging
from airflow_checkpoint_provider.hooks.spark_output import SparkOutput
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
configure_logging(output=sys.stdout.buffer, json_output=True)
output = SparkOutput(lambda line: print(f"ours: {line}"))
CheckpointedSparkSubmitHook(output=output).submit("echo INFO of Spark; echo ${CHECKPOINT_LINE_MARK}chk-1 completed")
output.log_last_lines()
"""


@pytest.mark.parametrize("level", [pytest.param("INFO", marks=pytest.mark.slow), "WARNING"])  # INFO is the default
def test_level_of_the_logger_decides_about_the_lines_of_spark_alone(recorded: Path, level: str) -> None:
    levels = f"airflow.task.hooks.airflow_checkpoint_provider.hooks.spark_submit={level}"
    env = {**os.environ, "AIRFLOW__LOGGING__NAMESPACE_LEVELS": levels}
    done = subprocess.run(
        [sys.executable, "-c", OURS], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    lines = done.stdout.splitlines()
    assert next(line for line in lines if line.startswith("ours: ")) == "ours: chk-1 completed"
    assert lines[-1] == "ours: INFO of Spark"
    theirs = [line for line in lines if not line.startswith("ours: ")]
    for words in ("::group::", "INFO of Spark", "::endgroup::"):
        assert any(words in line for line in theirs) == (level == "INFO"), lines
