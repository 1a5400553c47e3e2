"""A real ``spark-submit`` by the hook: what the driver's end looks like to the task."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture(autouse=True)
def local_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "driver.py"
    path.write_text(body)
    return str(path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param("import sys; sys.exit(3)", 3, marks=pytest.mark.slow),  # "killed" has the way of any code
        pytest.param("import os; os._exit(79)", 79, marks=pytest.mark.slow),  # test_watchdog.py has it without the hook
        (KILLED, 137),
        pytest.param("raise ValueError", 1, marks=pytest.mark.slow),
    ],
    ids=["refused", "fenced", "killed", "raised"],
)
def test_exit_code_of_the_driver_is_that_of_spark_submit(tmp_path: Path, body: str, code: int) -> None:
    hook = CheckpointedSparkSubmitHook()
    with pytest.raises(AirflowException):
        hook.submit(script(tmp_path, body))
    assert hook.returncode == code


@pytest.mark.timeout(120)
def test_successful_driver_sees_its_environment(tmp_path: Path) -> None:
    body = f"""
import os, pathlib
jvm = os.getppid()
seen = [str(jvm), os.readlink(f"/proc/{{jvm}}/fd/0"), os.environ["CHECKPOINT_ACCESS_KEY_ID"]]
pathlib.Path({str(tmp_path / "seen")!r}).write_text("\\n".join(seen))
"""
    hook = CheckpointedSparkSubmitHook(environment={"CHECKPOINT_ACCESS_KEY_ID": "mine"})
    hook.submit(script(tmp_path, body))
    assert hook.returncode == 0
    assert (tmp_path / "seen").read_text().splitlines() == [str(hook.pid), "/dev/null", "mine"]
