"""Example DAGs as they stand, on a real Airflow."""

from __future__ import annotations

import pyarrow
import pyarrow.parquet
import pytest

from airflow_checkpoint_provider.coordinator.histories import run_histories
from tests.e2e.acted import DrivenRun
from tests.e2e.lab import Lab

LONG = 900


@pytest.mark.slow  # tests/integration/runtime/test_files.py runs the job of the example
def test_example_predicts_by_a_model_that_it_keeps(lab: Lab) -> None:
    data = lab.folder("flights_predictions")
    (data / "tables").mkdir(parents=True)
    numbers = range(600)
    table = pyarrow.table(
        {
            "month": [number % 12 + 1 for number in numbers], "hour": [number % 24 for number in numbers],
            "distance": [number % 900 for number in numbers], "flight": list(numbers),
            "arr_delay": [60 if number % 24 > 16 else 0 for number in numbers], "time_hour": list(numbers),
            "carrier": ["AA" if number % 3 else "UA" for number in numbers], "origin": ["JFK" if number % 2 else "LGA" for number in numbers],
        }
    )  # fmt: skip
    pyarrow.parquet.write_table(table, data / "tables" / "flights.parquet")
    run = DrivenRun(lab, "flights_predictions", data=str(data))
    assert run.client.wait_for_run(run.dag, run.id, LONG) == "success", run.states()
    assert pyarrow.parquet.read_table(data / "predictions").num_rows == 50
    (found,) = run_histories(lab.store_of("flights_predictions.predict"), "flights_predictions.predict", run.id).found
    kinds = {entry.uid: entry.kind for one in found.state.checkpoints for entry in one.states}
    assert kinds["model"] == "files"
