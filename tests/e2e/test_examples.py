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


@pytest.mark.slow  # tests/integration/runtime/test_loops.py runs the job of the example
def test_example_ranks_airports_in_a_loop(lab: Lab) -> None:
    data = lab.folder("airport_ranks")
    (data / "tables").mkdir(parents=True)
    routes = [(origin, dest) for origin in ("JFK", "LGA") for dest in ("LAX", "BOS", "ORD")]
    table = pyarrow.table({"origin": [origin for origin, _ in routes], "dest": [dest for _, dest in routes]})
    pyarrow.parquet.write_table(table, data / "tables" / "flights.parquet")
    run = DrivenRun(lab, "airport_ranks", data=str(data))
    assert run.client.wait_for_run(run.dag, run.id, LONG) == "success", run.states()
    assert pyarrow.parquet.read_table(data / "ranks").num_rows == 5
    (found,) = run_histories(lab.store_of("airport_ranks.rank"), "airport_ranks.rank", run.id).found
    kinds = {entry.uid: entry.kind for one in found.state.checkpoints for entry in one.states}
    assert (kinds["pagerank"], kinds["ranks"]) == ("loop", "frame")


@pytest.mark.slow  # tests/integration/runtime/test_keyed.py runs the job of the example
def test_example_adds_each_day_once(lab: Lab) -> None:
    data = lab.folder("flights_daily")
    (data / "tables").mkdir(parents=True)
    flights = [(1, day, "AA", 10.0 * day) for day in (1, 2)]
    names = ("month", "day", "carrier", "arr_delay")
    table = pyarrow.table(dict(zip(names, map(list, zip(*flights, strict=True)), strict=True)))
    pyarrow.parquet.write_table(table, data / "tables" / "flights.parquet")
    for day in ("2013-01-01", "2013-01-02", "2013-01-02"):
        run = DrivenRun(lab, "flights_daily", data=str(data), day=day)
        assert run.client.wait_for_run(run.dag, run.id, LONG) == "success", run.states()
    (row,) = pyarrow.parquet.read_table(data / "daily").to_pylist()
    assert row == {"carrier": "AA", "flights": 2, "delay": 30, "newest": "2013-01-02"}
