"""What ``make demo`` shows: a Spark driver killed half-way, and a retry that goes on. Runs on a developer's machine.

A real Airflow runs the DAG of ``example_dags/flights_delays.py``. The job knows nothing of what comes: this program watches the
journal from outside, and when the second of four stages is complete it ends the driver with ``kill -9``. Airflow's retry
goes on from there. At last the same script runs once more, undisturbed and without Airflow, and the reports are compared.

``make demo STORE=s3``: the same, but for one connection; rows and journal lie in a bucket, which this process serves.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet

from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.storage import LocalStore, S3Store, Store
from airflow_checkpoint_provider.text.units import size
from tests.support.drivers import WITH_S3A
from tests.support.folds import unfolded
from tests.support.processes import drivers
from tests.support.stack import EXAMPLES, Stack
from tests.support.stored import stored_stages
from tests.support.waiting import wait_until

DAG, TASK = "flights_etl", "delays"
SCRIPT = EXAMPLES / "jobs" / "flights.py"
SPARK_LOCAL = {
    "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
    "SPARK_LOCAL_IP": "127.0.0.1",
}


def main(*arguments: str) -> int:
    if arguments not in ((), ("s3",)):
        say("usage: make demo, or make demo STORE=s3")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-demo-"))
    say(f"Everything lies in {folder}; if something fails, it stays there.")
    if arguments:
        with bucket() as s3:
            run(folder, s3)
    else:
        run(folder)
    shutil.rmtree(folder)
    return 0


@contextmanager
def bucket() -> Iterator[S3Store]:
    """In the memory of this process, for whoever knows the key."""
    from tests.support.s3server import S3Server

    with S3Server() as server:
        server.make_bucket("lake")
        yield S3Store("lake", "checkpoints", server.settings())


def run(folder: Path, s3: S3Store | None = None) -> None:
    with Stack(folder / "airflow", EXAMPLES, {**SPARK_LOCAL, **(WITH_S3A if s3 else {})}) as stack:
        directory = LocalStore(stack.home / "checkpoints")  # used when there is no connection for checkpoints
        say(f"Airflow runs at {stack.url}. Its DAG {DAG}: prepare the data, compute delays with Spark, show them.")
        if s3:
            connect(stack, s3)
        dag_run = start_and_kill(stack, s3 or directory, folder)
        if s3:
            show_bucket(s3, directory)
        go_on(stack, dag_run)
    compare(stack.env, folder)


def start_and_kill(stack: Stack, store: Store, folder: Path, script: Path = SCRIPT) -> str:
    """Return the run of the DAG whose driver, of ``script``, is killed. Data and report lie below ``folder``."""
    stack.client.wait_for_dag(DAG)
    dag_run = stack.client.trigger(DAG, {"data": str(folder / "data")})
    stages = kill_driver(stack, store, dag_run, script, after="weather")
    say(f"Driver killed (kill -9), stages {' and '.join(sorted(stages))} were complete.")
    return dag_run


def go_on(stack: Stack, dag_run: str) -> None:
    say("The log of Airflow's retry:")
    state = stack.client.wait_for_run(DAG, dag_run)
    print_log(stack, dag_run)
    if state != "success":
        raise RuntimeError(f"the run ended {state}: {stack.client.states(DAG, dag_run)}")


def compare(env: dict[str, str], folder: Path) -> None:
    say("Now the same script, undisturbed and without Airflow.")
    expected = rows(run_alone(env, folder, folder / "data" / "tables"))
    if rows(folder / "data" / "report") != expected:
        raise RuntimeError("the reports differ")
    say(f"The reports are equal: {len(expected)} rows, each the same.")


def connect(stack: Stack, s3: S3Store) -> None:
    """As a person does it in Airflow's form; nothing else tells of S3."""
    extra = {"root": s3.uri, "endpoint_url": s3.settings.endpoint_url}
    keys = {"login": s3.settings.access_key_id, "password": s3.settings.secret_access_key}
    fields = {
        "connection_id": "checkpoint_default",
        "conn_type": "checkpoint_storage",
        "extra": json.dumps(extra),
        **keys,
    }
    stack.client.write("POST", "/api/v2/connections", fields)
    say(f"Connection checkpoint_default, of type Checkpoint Storage: {json.dumps(extra)}, and two keys.")


def show_bucket(s3: S3Store, directory: LocalStore) -> None:
    """Rows and journal are there, and nothing is where they would be without the connection."""
    stored = list(s3.list("jobs"))
    rows = [listed.size for listed in stored if listed.key.endswith(".parquet")]
    entries = [listed for listed in stored if "/journal/" in listed.key]
    if not rows or not entries or any(directory.list("")):
        raise RuntimeError(f"rows {rows}, journal {entries}, in the directory {list(directory.list(''))}")
    say(f"In {s3.uri}: {len(rows)} files of rows ({size(sum(rows))}), {len(entries)} entries of the journal.")


def kill_driver(stack: Stack, store: Store, dag_run: str, script: Path, *, after: str) -> set[str]:
    """Kill the driver once a stage is complete; returns all that are. It is stopped first, so that this is exact."""
    wait_until(
        lambda: after in completed_stages(store, dag_run),
        300,
        lambda: f"{stack.client.states(DAG, dag_run)}",
        every=0.05,
    )
    (driver,) = {*drivers(script)} & {*stack.parts["scheduler"].all_pids()}
    os.kill(driver, signal.SIGSTOP)
    stages = completed_stages(store, dag_run)
    os.kill(driver, signal.SIGKILL)
    return stages


def completed_stages(store: Store, dag_run: str) -> set[str]:
    """From the journal."""
    history = Keys(History(f"{DAG}.{TASK}", dag_run).prefix)
    journal = Journal(store, history, By("people", "demo", "here"))
    return stored_stages(journal.catch_up())


def print_log(stack: Stack, dag_run: str) -> None:
    """The log of the newest try, as a person sees it who opens no fold."""
    newest = stack.client.task(DAG, dag_run, TASK)["try_number"]
    for line in unfolded(stack.client.logs(DAG, dag_run, TASK, newest)):
        if not line.startswith("Spark-Submit cmd"):
            print(f"   {line}")


def run_alone(env: dict[str, str], folder: Path, tables: Path) -> Path:
    out = folder / "alone"
    command = [sys.executable, str(SCRIPT), "--source", str(tables), "--out", str(out)]
    with open(folder / "alone.log", "wb") as log:
        subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=300, check=True
        )
    return out


def rows(report: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(report).to_pylist()
    return found


def say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
