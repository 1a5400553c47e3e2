"""A run's whole life goes on after a real disk was full, read-only or denied at any change. Runs on Linux."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.disks import TROUBLES, in_namespace, no_namespace
from tests.support.drivers import ROOT


@pytest.mark.parametrize("every", [pytest.param(17, id="some"), pytest.param(1, id="each", marks=pytest.mark.slow)])
@pytest.mark.parametrize(  # tests/unit/storage/test_local_errors.py has each error number
    "trouble",
    [name if name in ("full", "read-only") else pytest.param(name, marks=pytest.mark.slow) for name in TROUBLES],
)
def test_life_goes_on_after_a_disk_in_trouble(tmp_path: Path, trouble: str, every: int) -> None:
    """Nothing is lost, errors are typed and name the path, and no temporary file is left."""
    if reason := no_namespace(tmp_path):
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.support.disks", str(tmp_path), trouble, str(every)]
    done = subprocess.run(
        in_namespace(tmp_path, command), cwd=ROOT, capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, done.stderr
