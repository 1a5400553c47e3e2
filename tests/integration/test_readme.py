"""What README and the pages for users show is so: their code runs, their tables name what is there, their commands answer."""

from __future__ import annotations

import inspect
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from airflow.sdk import DAG, task
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.operators._job_parameters import JobParameters
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.s3a import SDK, advice
from airflow_checkpoint_provider.storage import S3Store
from tests.support.codes import CODES
from tests.support.drivers import ROOT, environment, submit
from tests.support.waiting import wait_until

README = (ROOT / "README.md").read_text()
SUBMIT, AUDIT, S3, ON_CALL = (
    (ROOT / "docs" / page).read_text()
    for page in ("orchestrate/submit.md", "orchestrate/audit.md", "operate/storage-s3.md", "operate/on-call.md")
)

PREAMBLE = """
from argparse import Namespace
from pyspark.sql import SparkSession, functions as F
SRC, WEATHER, OUT = {src!r}, {weather!r}, {out!r}
args = Namespace(day=1)
def clean(flights): return flights.where("delay IS NOT NULL")
def join_weather(flights, weather): return flights.join(weather, "origin")
def report(flights): return flights.groupBy("weather").agg(F.sum("delay").alias("delay")).coalesce(1)
"""


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def changed(diff: str, sign: str) -> str:
    """One side of a diff: "-" what was there, "+" what is there then."""
    lines = (line for line in diff.splitlines() if not line or line[0] in (" ", sign))
    return "\n".join(line[1:] for line in lines)


def first_column(heading: str) -> list[str]:
    """Return the first column of the first table of ``SUBMIT`` after ``heading``."""
    (rows,) = re.findall(r"(?:^\|.*\n)+", SUBMIT.split(heading, 1)[1], re.MULTILINE)[:1]
    return [row.split("|")[1].strip() for row in rows.splitlines()[2:]]


def test_dag_of_the_diff_can_be_loaded() -> None:
    source = changed(blocks("diff")[0], "+")
    scope: dict[str, object] = {}
    with DAG("flights_etl", schedule=None):
        exec(compile(inspect.cleandoc(source.replace("\n    ", "\n")), "README", "exec"), scope)  # noqa: S102
    assert isinstance(scope["delays"], CheckpointedSparkSubmitOperator)
    assert scope["delays"].retries == 3


def test_group_of_one_line_can_be_built() -> None:
    source = next(block for block in blocks("python", AUDIT) if "task_groups" in block)
    with DAG("flights_etl", schedule=None) as dag:
        delays = CheckpointedSparkSubmitOperator(task_id="delays", application="jobs/delays.py")
        scope = {"delays": delays, **{name: task(task_id=name)(lambda *_: None) for name in ("audit", "publish")}}
        exec(compile(source, "audit.md", "exec"), scope)  # noqa: S102
    assert dag.get_task("publish").upstream_task_ids == {"checkpoint.notify"}
    assert "checkpoint.audit" in dag.get_task("checkpoint.trigger").downstream_task_ids


@pytest.fixture
def data(spark: SparkSession, tmp_path: Path) -> Path:
    flights = spark.range(200).selectExpr("if(id % 2 = 0, 'JFK', 'LGA') AS origin", "if(id % 5 = 0, NULL, id) AS delay")
    flights.write.parquet(str(tmp_path / "src" / "day=1"))
    weather = spark.createDataFrame([("JFK", "rain"), ("LGA", "sun")], "origin string, weather string")
    weather.write.parquet(str(tmp_path / "weather"))
    return tmp_path


def test_job_of_the_diff_has_the_result_of_the_plain_job(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both in the session of the tests."""
    monkeypatch.setattr(CheckpointedJob, "_finished", False)
    monkeypatch.chdir(data)
    reports = {}
    for sign in "-+":
        script = data / f"side_{'before' if sign == '-' else 'after'}.py"
        out = data / script.stem
        preamble = PREAMBLE.format(src=str(data / "src"), weather=str(data / "weather"), out=str(out))
        script.write_text(preamble + changed(blocks("diff")[1], sign))
        runpy.run_path(str(script), run_name="__main__")
        reports[sign] = sorted(map(str, pyarrow.parquet.read_table(out).to_pylist()))
    assert reports["-"] == reports["+"] != []
    assert list((data / "checkpoints" / "jobs" / "side_after").rglob("_metadata"))


def test_tables_name_existing_objects() -> None:
    in_the_job = {
        name for page in (ROOT / "docs").rglob("*.md") for name in re.findall(r"`job\.(\w+)", page.read_text())
    }
    assert in_the_job >= {"stage", "value", "checkpoint", "started_at", "attempt", "restored"}
    in_the_block = {"spark"}  # the session, since `with` has begun
    assert not [name for name in in_the_job - in_the_block if not hasattr(CheckpointedJob, name)]

    taken = (
        inspect.signature(vars(task)["__init__"]).parameters
        for task in (CheckpointedSparkSubmitOperator, JobParameters)
    )
    parameters = {name: parameter for some in taken for name, parameter in some.items()}
    for cell in first_column("## The parameters"):
        name, default = re.fullmatch(r"`(\w+)`(?: \(`(.+)`\))?", cell).groups()  # type: ignore[union-attr]
        assert name in parameters or name in ("durable", "deferrable")
        if default and name in parameters and parameters[name].default is not None:
            assert str(parameters[name].default) == default.strip('"'), name


def test_connection_to_s3_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = next(block for block in blocks("sh", S3) if "connections add" in block)
    words = shlex.split(shown)
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", words[words.index("--conn-json") + 1])
    store = CheckpointStorageHook().get_store()
    assert isinstance(store, S3Store)
    assert (store.uri, store.settings.region_name) == ("s3://lake/checkpoints", "eu-central-1")
    assert store.settings.access_key_id


def test_jars_for_s3_are_those_of_the_driver() -> None:
    shown = next(block for block in blocks("python", S3) if "hadoop-aws" in block)
    with DAG("flights_etl", schedule=None):
        task = eval(shown, {"CheckpointedSparkSubmitOperator": CheckpointedSparkSubmitOperator})  # noqa: S307
    assert f'packages="{task.packages}", exclude_packages="{task.exclude_packages}"' in advice("3.5.0")
    versions = re.findall(r"^\| 4\.\d \| ([\d.]+) \| ([\d.]+) \|$", S3, re.MULTILINE)
    assert dict(versions) == SDK


def test_every_code_is_known() -> None:
    shown = set(re.findall(r"\[(CKP\d+)\]", README))
    assert shown
    assert shown <= CODES.keys()


UNTIL_STOPPED = """import time
from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.spark import CheckpointedJob
with CheckpointedJob(checkpointing=CheckpointConfig(retention=KeepAll())) as job:
    turn, end = job.value("turn", 0), time.monotonic() + 100
    while time.monotonic() < end:
        turn.set(turn.get() + 1)
        job.checkpoint()
        time.sleep(0.1)
"""


def test_commands_exit_with_0(tmp_path: Path) -> None:
    """While the job runs, until one of them stops it."""
    script = tmp_path / "orders.py"
    script.write_text(UNTIL_STOPPED)
    shown = blocks("sh", ON_CALL)[0]
    stand_alone = re.search(r"Without Airflow write `(checkpoints .*?)`", ON_CALL)[1]  # type: ignore[index]
    words = shlex.split(stand_alone.replace("/shared/checkpoints", str(tmp_path / "checkpoints")))
    words[0] = str(Path(sys.executable).with_name("checkpoints"))

    def said(*verb: str) -> str:
        done = subprocess.run([*words[:-1], *verb], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with subprocess.Popen(submit(tmp_path, script), cwd=tmp_path, env=environment()) as job:
        try:
            wait_until(lambda: list(tmp_path.glob("checkpoints/jobs/orders/**/chk-1/_metadata")), 100, "no checkpoint")
            assert "orders" in said(*words[-1:])
            for verb in re.findall(r"^airflow checkpoints (\w.*?)(?:  +#.*)?$", shown, re.MULTILINE):
                assert said(*verb.replace("JOB", "orders").split())
            assert said("savepoint", "orders", "--name", "before price change")
            assert said("restore", "orders", "--from", "chk-1", "--dry-run")
            assert said("stop", "orders", "--yes")
            assert job.wait(60) == ExitCode.OVER
        finally:
            job.kill()
