"""Jobs that know Delta tables, or the tables of an Iceberg catalog. Runs on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import delta, iceberg
from tests.support.jars import NoJars
from tests.support.runs import Home
from tests.support.sparks import on_path, python_with_spark


def with_delta(home: Home, **env: str) -> Home:
    """Return the job, which knows Delta tables from now on. Skip the test if this machine cannot have the jars."""
    try:
        home.env |= delta.environment() | env
    except NoJars as error:
        pytest.skip(str(error))
    home.confs |= delta.CONFS
    return home


def on_iceberg(folder: Path, lake: iceberg.Lake, script: str) -> Home:
    """Return a job that knows Iceberg and a catalog. Raises ``NoJars``."""
    python = python_with_spark("4.1")
    home = Home(folder, script, python=python)
    home.env |= iceberg.environment() | on_path(python)
    home.confs |= lake.confs()
    return home
