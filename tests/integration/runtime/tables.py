"""Jobs that know Delta tables, or the tables of an Iceberg catalog. Runs on Linux."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import delta, iceberg
from tests.support.jars import NoJars
from tests.support.runs import PATIENCE, Home
from tests.support.sparks import INSTALLED, on_release
from tests.support.waiting import wait_until


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


@contextmanager
def asleep(home: Home, point: str, confs: dict[str, str]) -> Iterator[None]:
    """A driver that sleeps at a point, and wakes when the block ends. It is over then."""
    with home.started(("stop", point), confs=confs) as zombie:
        wait_until(zombie.is_stopped, PATIENCE, zombie.said)
        yield
        zombie.send(signal.SIGCONT)
        assert zombie.wait().code != 0, zombie.said()
