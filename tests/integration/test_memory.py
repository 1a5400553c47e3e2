"""A real driver runs out of heap, and the retry of its task finishes with more. Runs where Airflow and Spark are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import AirflowException

from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import LocalStore
from tests.support import tasks
from tests.support.drivers import fast_confs, quick_jvms
from tests.support.runs import JOBS, Ended
from tests.support.state_store import TaskStateStore

HEAP = "spark.driver.memory"
RUN = "manual__1"
DAG_RUN = SimpleNamespace(run_after=datetime(2026, 11, 20, tzinfo=UTC), run_type="manual")
SMALL = {
    "spark.testing.reservedMemory": str(32 * 2**20),  # Spark wants 450 MB of heap by default
    "spark.log.level": "ERROR",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


class Task:
    """One task, each try of which submits ``heap.py`` to a real Spark."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options, self._try, self._store = folder, options, 0, TaskStateStore()
        (folder / "out").mkdir()

    def run(self) -> Any:
        """Return what the next try returns, or raise its error."""
        self._try += 1
        (self.folder / "events" / str(self._try)).mkdir(parents=True)
        confs = {**fast_confs(self.folder), **SMALL}
        confs["spark.eventLog.dir"] = f"file://{self.folder}/events/{self._try}"
        del confs[HEAP]
        with DAG("etl", schedule=None):
            task = CheckpointedSparkSubmitOperator(
                task_id="job", application=str(JOBS / "heap.py"), application_args=[str(self.folder / "out")],
                memory_after_oom="1.5 x", conf=confs, **self.options,
            )  # fmt: skip
        ti = tasks.ti("job", dag_id="etl", run_id=RUN, try_number=self._try, max_tries=3, stats_tags={})
        ti.xcom_push = lambda **_: None
        return task.execute({"ti": ti, "dag_run": DAG_RUN, "task_state_store": self._store})

    @property
    def state(self) -> State:
        store = LocalStore(str(self.folder / "checkpoints"))
        return open_history(store, History("etl.job", RUN).prefix).journal.catch_up()

    def computed(self, try_number: int) -> list[str]:
        """Return the stages that the driver of a try computed, by Spark's own record."""
        return Ended(0, "", self.folder / "events" / str(try_number)).computed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    monkeypatch.setenv(VARIABLE, "0.5")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in quick_jvms().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    storage = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "checkpoints")}}
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(storage))
    return tmp_path


@pytest.mark.slow  # three drivers; tests/unit/operators/test_memory.py lets a script act them
@pytest.mark.timeout(900)
def test_driver_that_runs_out_of_heap_is_retried_with_more_and_its_first_stage_is_reused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a driver whose JVM somebody kills is retried with the same memory."""
    monkeypatch.setenv("HEAP_BYTES", "100000000")
    task = Task(folder, driver_memory="200m")
    (folder / "out" / "kill").touch()
    with pytest.raises(AirflowException, match=r"attempt 1 failed"):
        task.run()
    with pytest.raises(AirflowException, match=r"attempt 2 failed"):
        task.run()
    assert task.run()["ended"] == "finished"
    state = task.state
    assert [attempt.cause for attempt in state.attempts] == ["", "driver_heap", ""]
    assert [launch.spec.memory[HEAP] for launch in state.launches] == ["200m", "200m", "300m"]
    assert [task.computed(number) for number in (1, 3)] == [["first"], ["second"]]
    said = capfd.readouterr().out
    assert (
        "the driver ran out of memory (Java heap): this launch has spark.driver.memory=300m, 1.5 times that of launch 2"
        in said
    )
    assert "FAILED (exit code" in said
    assert "in 2 attempts; the driver ran out of memory (Java heap)" in said
    assert "FINISHED in 3 attempts" in said
