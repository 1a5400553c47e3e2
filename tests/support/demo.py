"""What ``make demo`` shows: a Spark driver killed half-way, and a retry that goes on. Runs on a developer's machine.

A real Airflow runs the DAG of ``dags/flights_delays.py``. The job knows nothing of what comes: this program watches the
journal from outside, and when the second of four stages is complete it ends the driver with ``kill -9``. Airflow's retry
goes on from there. At last the same script runs once more, undisturbed and without Airflow, and the reports are compared.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet

from airflow_checkpoint_provider.checkpoint.entry import By
from airflow_checkpoint_provider.checkpoint.journal import Journal
from airflow_checkpoint_provider.checkpoint.names import History, Keys
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.processes import drivers
from tests.support.stack import PROJECT, Stack
from tests.support.waiting import wait_until

DAG, TASK = "flights_etl", "delays"
SCRIPT = PROJECT / "dags" / "jobs" / "flights.py"
SPARK_LOCAL = {
    "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
    "SPARK_LOCAL_IP": "127.0.0.1",
}
NOISE = re.compile(  # what Airflow and Spark say
    r"::|/|DAG bundles loaded|Filling up the DagBag|Worker startup|Pushing xcom|Spark-Submit cmd"
    r"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d [A-Z]+ |WARNING: |Using |To adjust "
)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-demo-"))
    say(f"Everything lies in {folder}; if something fails, it stays there.")
    run(folder)
    shutil.rmtree(folder)
    return 0


def run(folder: Path) -> None:
    data = folder / "data"
    with Stack(folder / "airflow", PROJECT / "dags", SPARK_LOCAL) as stack:
        say(f"Airflow runs at {stack.url}. Its DAG {DAG}: prepare the data, compute delays with Spark, show them.")
        stack.client.wait_for_dag(DAG)
        dag_run = stack.client.trigger(DAG, {"data": str(data)})
        stages = kill_driver(stack, dag_run, after="weather")
        say(
            f"Driver killed (kill -9), stages {' and '.join(sorted(stages))} were complete. The log of Airflow's retry:"
        )
        state = stack.client.wait_for_run(DAG, dag_run)
        print_log(stack, dag_run)
        if state != "success":
            raise RuntimeError(f"the run ended {state}: {stack.client.states(DAG, dag_run)}")
    say("Now the same script, undisturbed and without Airflow.")
    expected = rows(run_alone(stack.env, folder, data / "tables"))
    if rows(data / "report") != expected:
        raise RuntimeError("the reports differ")
    say(f"The reports are equal: {len(expected)} rows, each the same.")


def kill_driver(stack: Stack, dag_run: str, *, after: str) -> set[str]:
    """Kill the driver once a stage is complete; returns all that are. It is stopped first, so that this is exact."""
    wait_until(
        lambda: after in completed_stages(stack, dag_run),
        300,
        lambda: f"{stack.client.states(DAG, dag_run)}",
        every=0.05,
    )
    (driver,) = {*drivers(SCRIPT)} & {*stack.parts["scheduler"].all_pids()}
    os.kill(driver, signal.SIGSTOP)
    stages = completed_stages(stack, dag_run)
    os.kill(driver, signal.SIGKILL)
    return stages


def completed_stages(stack: Stack, dag_run: str) -> set[str]:
    """From the journal, in the folder that is used when there is no connection for checkpoints."""
    history = Keys(History(f"{DAG}.{TASK}", dag_run).prefix)
    journal = Journal(LocalStore(stack.home / "checkpoints"), history, By("people", "demo", "here"))
    return {state.uid for one in journal.catch_up().retained for state in one.states if state.kind == "stage"}


def print_log(stack: Stack, dag_run: str) -> None:
    """The log of the newest try, without what Spark says."""
    newest = stack.client.task(DAG, dag_run, TASK)["try_number"]
    for line in stack.client.logs(DAG, dag_run, TASK, newest):
        if not NOISE.match(line):
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
    sys.exit(main())
