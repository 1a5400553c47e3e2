"""Jobs that know Delta tables, or the tables of an Iceberg catalog. Runs on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import delta, iceberg
from tests.support.jars import NoJars
from tests.support.runs import Home
from tests.support.sparks import INSTALLED, on_release


def on_delta(folder: Path, script: str, release: str = INSTALLED, **env: str) -> Home:
    """Return a job on a release of Spark, which knows Delta tables. Skip the test if this machine cannot have the jars."""
    home = on_release(folder, script, release)
    try:
        home.env |= delta.environment(release) | env
    except NoJars as error:
        pytest.skip(str(error))
    home.confs |= delta.CONFS
    return home


def on_iceberg(folder: Path, lake: iceberg.Lake, script: str, release: str = "4.1") -> Home:
    """Return a job on a release of Spark, which knows Iceberg and a catalog. Raises ``NoJars``."""
    home = on_release(folder, script, release)
    home.env |= iceberg.environment(release)
    home.confs |= lake.confs()
    return home
