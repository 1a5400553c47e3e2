"""A script that is compared with a checkpoint by the command line. Runs on Linux."""

from __future__ import annotations

import sys

import pytest

from airflow_checkpoint_provider.cli.main import main
from tests.support.drivers import environment
from tests.support.runs import Home


def preflight(home: Home, monkeypatch: pytest.MonkeyPatch, *options: str, **confs: str) -> int:
    """Compare the script with a checkpoint, as a person would who has the confs of its first driver and other ``confs``. Return the
    exit code.
    """
    properties = home.folder / "preflight.properties"
    before = (home.folder / "driver-1" / "spark.properties").read_text()
    properties.write_text(before + "".join(f"{name} {value}\n" for name, value in confs.items()))
    environ = environment(PYSPARK_SUBMIT_ARGS=f"--properties-file {properties} pyspark-shell", **home.env)
    script = (sys.executable, str(home.script), str(home.out))
    with monkeypatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        return main(("--root", home.store.uri, "preflight", home.script.stem, "--yes", *options, "--", *script))
