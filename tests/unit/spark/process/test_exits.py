"""The exit code of a script without Airflow that ends with an error, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from airflow_checkpoint_provider.errors import InvalidConfig, StoreUnavailable
from airflow_checkpoint_provider.spark.end import refuse_retry

error = {error}("no such root")
refuse_retry(error, None)
"""


@pytest.mark.parametrize(
    ("error", "end", "code"),
    [
        ("InvalidConfig", "raise error", 3),
        ("StoreUnavailable", "raise error", 1),
        ("InvalidConfig", "raise ValueError('another one')", 1),
        ("InvalidConfig", "print('the script has caught it')", 0),
    ],
)
def test_error_that_no_retry_can_mend_ends_a_script_with_code_3(
    tmp_path: Path, error: str, end: str, code: int
) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT.format(error=error) + end)
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.count("Traceback (most recent call last)") == (code != 0), ended.stderr


def test_error_does_not_end_a_python_without_a_script() -> None:
    """A REPL prints the error and reads on; here it reads standard input."""
    lines = f"{SCRIPT.format(error='InvalidConfig')}raise error\n\nprint('still there')\n"
    ended = subprocess.run(
        [sys.executable, "-i", "-q"], input=lines, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "still there\n"), ended.stderr
    assert "no such root" in ended.stderr
