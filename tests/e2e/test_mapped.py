"""Mapped tasks on a real scheduler: each item has a history of its own, though the list changes and drivers and workers die.

A driver is acted, without Spark, but its journal, its task and its death are real.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence

import pyarrow
import pyarrow.parquet
import pytest

from airflow_checkpoint_provider.coordinator.histories import run_histories
from tests.e2e.acted import DrivenRun
from tests.e2e.lab import PATIENCE, Lab

pytestmark = pytest.mark.timeout(4 * 3600)
LONG = 3 * PATIENCE  # seconds for a run of many instances, a few at a time


class Mapped(DrivenRun):
    """A run that loads the tables of a list, which the test may change."""

    def __init__(self, lab: Lab, dag: str, tables: Sequence[str], *broken: str, killing: str = "") -> None:
        self.folder = lab.folder(dag)
        self.folder.mkdir(parents=True)
        self.list(tables)
        for table in broken:
            (self.folder / f"broken-{table}").touch()
        if killing:
            (self.folder / "killing").write_text(killing)
        super().__init__(lab, dag, folder=str(self.folder))

    def list(self, tables: Sequence[str]) -> None:
        (self.folder / "tables.json").write_text(json.dumps(list(tables)))

    def repair(self) -> None:
        for path in self.folder.glob("broken-*"):
            path.unlink()

    def counted(self, name: str) -> Counter[str]:
        path = self.folder / name
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    def finished(self) -> str:
        return self.client.wait_for_run(self.dag, self.id, LONG)

    def loads(self) -> dict[str, str]:
        """Return the state of each item, as Airflow shows it."""
        path = f"/api/v2/dags/{self.dag}/dagRuns/{self.id}/taskInstances?limit=200"
        found = self.client.call("GET", path)["task_instances"]
        return {task["rendered_map_index"]: task["state"] for task in found if task["task_id"] == "load"}

    def items(self) -> dict[str, str | None]:
        """Return how each item's newest attempt ended, by its own history."""
        found = run_histories(self.lab.store_of(f"{self.dag}.load"), f"{self.dag}.load", self.id).found
        return {str(history.state.item): history.state.attempts[-1].outcome for history in found}


@pytest.mark.slow  # test_items.py of the operators changes lists between tries, and after a clear
def test_items_go_on_after_the_list_was_changed(lab: Lab) -> None:
    """The one that failed continues where it was. Those that had finished start again: they were cleared, too."""
    run = Mapped(lab, "mapped", ["orders", "payments", "stock"], "payments")
    assert run.finished() == "failed"
    assert run.counted("computed") == {"orders": 1, "payments": 1, "stock": 1}
    assert run.loads() == {"orders": "success", "payments": "failed", "stock": "success"}

    run.repair()
    run.list(["customers", "stock", "orders", "payments"])
    run.clear("list_tables", "load")
    assert run.finished() == "success", run.states()
    assert run.counted("computed") == {"orders": 2, "payments": 1, "stock": 2, "customers": 1}
    assert run.counted("loaded") == {"orders": 2, "payments": 1, "stock": 2, "customers": 1}
    assert run.items() == dict.fromkeys(["customers", "orders", "payments", "stock"], "finished")
    assert not run.counted("swapped")


@pytest.mark.slow  # as before
def test_fifty_items_are_each_computed_once(lab: Lab) -> None:
    """Drivers kill themselves at random, some items fail for good; then the list is another one, and everything is cleared."""
    seed = f"{random.randrange(10**6)}"
    draw = random.Random(seed)
    tables = [f"table {number}" for number in range(50)]
    broken = draw.sample(tables, 3)
    run = Mapped(lab, "mapped_many", tables, *broken, killing=seed)
    assert run.finished() == "failed", (seed, run.states())
    assert run.counted("computed") == dict.fromkeys(tables, 1), seed
    assert run.counted("loaded") == {table: 1 for table in tables if table not in broken}, seed

    run.repair()
    longer = [*tables, *(f"new {number}" for number in range(5))]
    draw.shuffle(longer)
    run.list(longer)
    run.clear("list_tables", "load")
    assert run.finished() == "success", (seed, run.states())
    assert run.counted("computed") == dict.fromkeys(longer, 1), seed
    assert set(run.counted("loaded")) == set(longer), seed
    assert run.items() == dict.fromkeys(longer, "finished"), seed
    assert not run.counted("swapped"), seed


@pytest.mark.slow  # test_items.py and test_mapped.py of the operators, without a scheduler
def test_example_loads_each_table_of_a_folder(lab: Lab) -> None:
    """The example DAG as it stands: each instance shows its item, and has the history of it."""
    data = lab.folder("load_tables")
    (data / "tables").mkdir(parents=True)
    for name in ("orders", "payments"):
        table = pyarrow.table({"number": [3, 1, 3], "name": [name] * 3})
        pyarrow.parquet.write_table(table, data / "tables" / f"{name}.parquet")
    run = DrivenRun(lab, "load_tables", data=str(data))
    assert run.client.wait_for_run(run.dag, run.id, LONG) == "success", run.states()
    for name in ("orders", "payments"):
        loaded = pyarrow.parquet.read_table(data / "loaded" / name).to_pylist()
        assert loaded == [{"number": number, "name": name} for number in (1, 3)]
    found = run_histories(lab.store_of("load_tables.load"), "load_tables.load", run.id).found
    assert {history.state.item for history in found} == {"orders", "payments"}
    tasks = run.client.call("GET", f"/api/v2/dags/load_tables/dagRuns/{run.id}/taskInstances")["task_instances"]
    assert {task["rendered_map_index"] for task in tasks if task["task_id"] == "load"} == {"orders", "payments"}
