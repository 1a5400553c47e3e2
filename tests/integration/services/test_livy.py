"""Jobs of Spark that Airflow's own operator submits by Livy. Runs on Linux."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.livy.hooks.livy import LivyHook

from tests.integration.services.telling import ARGUMENTS, CONF, archive, check, result, script
from tests.support.runs import JOBS
from tests.support.services.hosts import Host
from tests.support.services.livy import Livy


@pytest.fixture
def livy(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Livy]:
    with Livy(host) as livy:
        monkeypatch.setenv("AIRFLOW_CONN_LIVY_DEFAULT", livy.connection)
        yield livy


@pytest.mark.slow  # test_services_livy.py has the words of spark-submit, test_spark_submit_confs.py a driver with the archive
def test_batch_is_a_real_spark_submit(livy: Livy, tmp_path: Path) -> None:
    conf = {"spark.my.conf": CONF, "spark.yarn.appMasterEnv.A": "of YARN"}
    number = LivyHook().post_batch(script(tmp_path), args=ARGUMENTS, py_files=[archive()], conf=conf)
    batch = livy.batches[number]
    batch.driver.wait()
    check(batch.driver, ["of YARN", None])
    assert batch.state == "success"


@pytest.mark.slow  # test_example_dag.py kills a driver, without a service
def test_job_that_is_killed_in_a_stage_goes_on_in_the_next_batch(livy: Livy, tmp_path: Path) -> None:
    places = [str(tmp_path / "out"), str(tmp_path / "checkpoints")]
    asked: dict[str, Any] = {"file": str(JOBS / "totals.py"), "py_files": [archive()], "args": places}
    livy.host.crash_next("kill", "stage/totals/rows-written")
    first = livy.batches[LivyHook().post_batch(**asked)]
    assert first.driver.wait() == 137, first.driver.said()  # spark-submit says so of its Python
    second = livy.batches[LivyHook().post_batch(**asked)]
    assert second.driver.wait() == 0, second.driver.said()
    assert (first.state, second.state) == ("dead", "success")
    assert result(second.driver)["restored"] is not None
