"""Drivers with other releases of Spark or Java than the installed ones. pip brings Spark."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.s3a import advice
from tests.integration.runtime.goings_back import killed_behind_a_savepoint, restore
from tests.integration.runtime.rounds import Rounds
from tests.integration.runtime.streams import FILES, goes_on_behind_batch_one, killed_in_batch_one, running_forever
from tests.integration.runtime.totals import killed_job_continues
from tests.jobs.matrix import FEW
from tests.support.drivers import ROOT
from tests.support.runs import Home
from tests.support.s3server import S3Server
from tests.support.sparks import on_path, on_release, python_with_spark
from tests.support.streams import expected, expected_keys, rows_in

HADOOP = {"4.0": "3.4.1", "4.1": "3.4.2", "4.3": "3.5.0"}
"""Spark -> the version of Hadoop that it brings."""


def killed_job_continues_on(home: Home, python: str, release: str, confs: dict[str, str] | None = None) -> None:
    home.env |= on_path(python)
    home.confs |= confs or {}
    killed_job_continues(home)
    assert all(attempt.versions.spark.startswith(release) for attempt in home.coordinator().state.attempts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", [*HADOOP, "4.0.1", "4.0.2", "4.1.1"])
def test_killed_job_continues_on_release(tmp_path: Path, release: str) -> None:
    python = python_with_spark(release)
    killed_job_continues_on(Home(tmp_path / "home", python=python), python, release)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", [*HADOOP, "4.0.0", "4.1.0", "4.1.1"])
def test_stored_schema_runs_no_code_on_release(release: str) -> None:
    """The last three read pickles of schemas, and call functions that schemas name."""
    read = [python_with_spark(release), "-m", "tests.support.planted_schemas"]
    out = subprocess.run(read, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300).stdout
    assert out.splitlines()[0] == "[]"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", HADOOP)
def test_writes_of_a_preflight_are_refused_on_release(release: str) -> None:
    tried = [python_with_spark(release), "-m", "tests.support.writes"]
    out = subprocess.run(tried, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=900).stdout
    assert json.loads(out.splitlines()[-1]) == {"not refused": {}, "not read": {}, "files": []}


OBSERVED = """
import json
from pyspark.sql import Observation, functions as F
from airflow_checkpoint_provider.spark import CheckpointedJob

with CheckpointedJob() as job:
    kept, odd = Observation("kept"), Observation()
    metrics = [F.count(F.lit(1)).alias("rows"), F.max("id"), F.max(F.expr("cast(id as decimal(9, 2))")).alias("most")]
    df = job.spark.range(10).observe(kept, *metrics).observe(odd, F.first(F.create_map("id", "id")).alias("map"))
    job.stage("a", df)
    print("RESULT", json.dumps({"kept": str(kept.get)}))
    if job.attempt == 1:
        print(odd.get)
        job.checkpoint()
        job.stage("b", job.spark.range(3))
    try:
        odd.get
    except Exception as error:
        print("REFUSED", error)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", HADOOP)
def test_metrics_of_a_reused_stage_are_handed_out_on_release(tmp_path: Path, release: str) -> None:
    """Spark's own Observation is not the same class in each release."""
    home = Home(tmp_path / "home", python=python_with_spark(release))
    home.script.write_text(OBSERVED)
    killed = home.run(("kill", "stage/b/rows-written"))
    assert (killed.code, killed.result["kept"].startswith("{'rows': 10, 'max(id)': 9, 'most': Decimal(")) == (
        -9,
        True,
    ), killed.log
    ended = home.run()
    assert (ended.code, ended.computed, ended.result) == (0, [], killed.result), ended.log
    assert "REFUSED this Observation has no metrics: stage 'a' was reused" in ended.log


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", HADOOP)
def test_killed_job_continues_in_s3_with_the_advised_packages(tmp_path: Path, s3: S3Server, release: str) -> None:
    """Spark fetches them from Maven Central."""
    python = python_with_spark(release)
    home = Home(tmp_path / "home", s3=s3, python=python)
    del home.env["SPARK_DIST_CLASSPATH"]
    advised = re.search(r'packages="(.*?)", exclude_packages="(.*?)"', advice(HADOOP[release]))
    assert advised
    confs = {
        "spark.jars.packages": advised[1],
        "spark.jars.excludes": advised[2],
        "spark.jars.ivy": str(tmp_path / "ivy"),
    }
    killed_job_continues_on(home, python, release, confs)
    assert not (tmp_path / "home" / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", HADOOP)
def test_killed_query_goes_on_exactly_on_release(tmp_path: Path, release: str) -> None:
    stream = on_release(tmp_path / "stream", "stream.py", release)
    running_forever(stream, STREAM_STATE="1")
    goes_on_behind_batch_one(stream, killed_in_batch_one(stream))
    assert rows_in(stream.out, "key") == expected_keys(FILES)
    stream.env["STREAM_RESCALE"] = "1"
    refused = stream.run(confs={"spark.sql.shuffle.partitions": "3"})
    assert refused.code != 0
    why = "its state is in" if release == "4.3" else "the tool comes with Spark 4.2"
    assert f"cannot continue with 3 partitions instead of 2: {why}" in refused.log


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", HADOOP)
def test_killed_batch_sink_goes_on_exactly_on_release(tmp_path: Path, release: str) -> None:
    stream = on_release(tmp_path / "stream", "stream.py", release)
    running_forever(stream, STREAM_SINK="batch_sink")
    goes_on_behind_batch_one(stream, killed_in_batch_one(stream))
    assert rows_in(stream.out) == expected(FILES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", HADOOP)
def test_queries_stay_exact_through_a_kill_and_a_sleep_on_release(tmp_path: Path, release: str) -> None:
    """Spark 4.0 has no ``transformWithState`` for rows in Python."""
    matrix = on_release(tmp_path / "matrix", "matrix.py", release)
    queries = [(operator, store) for operator, store in FEW if (operator, release) != ("totals", "4.0")]
    with Rounds(matrix, seed=3, queries=queries) as rounds:
        rounds.hurt(signal.SIGKILL, blind=False, saved=True)
        rounds.hurt(signal.SIGSTOP, blind=True, saved=False)
        rounds.finish()
        rounds.check_forks()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", HADOOP)
def test_query_goes_back_on_release(tmp_path: Path, release: str) -> None:
    """The batches that it takes out of the sink are entries of the sink's log, which Spark reads afterwards."""
    stream = on_release(tmp_path / "stream", "stream.py", release)
    running_forever(stream)
    number = killed_behind_a_savepoint(stream)
    restore(stream, number, rewind_sink=True)
    ended = stream.run()
    assert ended.code == 0, ended.log
    assert f"goes back to batch 1 of chk-{number}" in ended.log
    assert rows_in(stream.out) == expected(FILES)
    assert ended.result["rows"] == len(expected(FILES)), "as Spark reads it"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_job_continues_on_java_25(tmp_path: Path) -> None:
    homes = sorted(Path("/usr/lib/jvm").glob("*25*/bin/java"))
    if not homes:
        pytest.skip("this machine has no Java 25")
    home = Home(tmp_path / "home")
    home.env["JAVA_HOME"] = str(homes[0].parents[1])
    killed_job_continues(home)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_job_on_spark_3_is_refused_in_one_line(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", python=python_with_spark("3.5"))
    refused = home.run()
    assert refused.code == ExitCode.FAILED, refused.log  # without Airflow, nobody would retry
    last = refused.log.splitlines()[-1]
    assert "needs Spark 4.0 or newer, found 3.5." in last
    assert last.endswith("[CKP606]")
    assert home.coordinator().state.attempts == ()
