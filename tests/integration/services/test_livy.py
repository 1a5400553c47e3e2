"""Jobs of Spark that Airflow's own operator submits by Livy. Runs on Linux."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.livy.hooks.livy import LivyHook

from airflow_checkpoint_provider.hooks.archive import driver_archive
from tests.support.runs import JOBS
from tests.support.services.hosts import Host, Hosted
from tests.support.services.livy import Livy

TELLS = """
import json, os, sys
from pyspark.sql import SparkSession

import airflow_checkpoint_provider

spark = SparkSession.builder.getOrCreate()
of_the_test = sorted(name for name in os.environ if "AIRFLOW" in name)
print("RESULT", json.dumps({
    "rows": spark.range(10).count(), "master": spark.sparkContext.master, "mine": spark.conf.get("spark.my.conf"), "arguments": sys.argv[1:],
    "package": airflow_checkpoint_provider.__file__, "of the test": of_the_test,
}))
"""


@pytest.fixture
def livy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Livy]:
    with Host(tmp_path / "host") as host, Livy(host) as livy:
        monkeypatch.setenv("AIRFLOW_CONN_LIVY_DEFAULT", livy.connection)
        yield livy


def result(driver: Hosted) -> dict[str, Any]:
    (line,) = [line for line in driver.lines() if line.startswith("RESULT ")]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def test_batch_is_a_real_spark_submit(livy: Livy, tmp_path: Path) -> None:
    app = tmp_path / "tells.py"
    app.write_text(TELLS)
    archive = str(driver_archive())
    number = LivyHook().post_batch(str(app), args=["a b"], py_files=[archive], conf={"spark.my.conf": "x=1, y"})
    driver = livy.batches[number].driver
    assert driver.wait() == 0, driver.said()
    told = result(driver)
    assert Path(told.pop("package")).parents[1].name == Path(archive).name, "not the tests' own"
    assert told == {"rows": 10, "master": "local[2]", "mine": "x=1, y", "arguments": ["a b"], "of the test": []}
    assert livy.batches[number].state == "success"


@pytest.mark.slow  # test_batch_is_a_real_spark_submit runs one driver, test_kills.py kills one without a service
def test_job_that_is_killed_in_a_stage_goes_on_in_the_next_batch(livy: Livy, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"file": str(JOBS / "totals.py"), "py_files": [str(driver_archive())]}
    asked["args"] = [str(tmp_path / "out"), str(tmp_path / "checkpoints")]
    livy.host.crash_next("kill", "stage/totals/rows-written")
    hook = LivyHook()
    first, second = (livy.batches[hook.post_batch(**asked)] for _ in range(2) if _ended(livy))
    assert first.driver.code == 137, first.driver.said()  # spark-submit says so of its Python
    assert (first.state, second.driver.wait(), second.state) == ("dead", 0, "success"), second.driver.said()
    assert result(second.driver)["restored"] == 1


def _ended(livy: Livy) -> bool:
    return all(batch.driver.wait() is not None for batch in livy.batches.values())
