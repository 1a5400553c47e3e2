"""A job of Spark that tells what has reached it. It runs on the host of a service."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from airflow_checkpoint_provider.hooks.archive import driver_archive
from tests.support.services.hosts import Hosted

CONF = "x=1, y"
ARGUMENTS = ["a b", "$c"]
SCRIPT = """
import json, os, sys
from pyspark.sql import SparkSession

import airflow_checkpoint_provider

spark = SparkSession.builder.getOrCreate()
print("RESULT", json.dumps({
    "rows": spark.range(10).count(), "master": spark.sparkContext.master, "conf": spark.conf.get("spark.my.conf"),
    "arguments": sys.argv[1:], "package": airflow_checkpoint_provider.__file__, "variables": [os.environ.get("A"), os.environ.get("SECRET")],
    "of the test": sorted(name for name in os.environ if "AIRFLOW" in name),
}))
"""


def script(folder: Path) -> str:
    """Return the path of the job."""
    file = folder / "tells.py"
    file.write_text(SCRIPT)
    return str(file)


@functools.cache
def archive() -> str:
    """Return the file that must travel with the job."""
    return str(driver_archive())


def result(driver: Hosted) -> dict[str, Any]:
    """Return what a job has printed as its result."""
    (line,) = [line for line in driver.lines() if line.startswith("RESULT ")]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def check(driver: Hosted, variables: list[str | None]) -> None:
    """Check that all has arrived, and nothing else. ``variables`` are ``A`` and ``SECRET``."""
    assert driver.code == 0, driver.said()
    told = result(driver)
    assert Path(told.pop("package")).parents[1].name == Path(archive()).name, "not the tests' own"
    assert told == {
        "rows": 10, "master": "local[2]", "conf": CONF, "arguments": ARGUMENTS, "of the test": [], "variables": variables,
    }  # fmt: skip
