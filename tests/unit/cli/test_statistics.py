"""``checkpoints show --statistics``: counts, durations and sizes; as JSON with Flink's names."""

from __future__ import annotations

import json

import pytest

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress
from airflow_checkpoint_provider.protocol.commands import LocateQuery
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.storage import LocalStore
from airflow_checkpoint_provider.text.units import day_and_time
from tests.support.acknowledgements import acknowledgement
from tests.support.acting import Job
from tests.support.query_lives import chained
from tests.support.recorded import RUN, Recorded
from tests.unit.cli.conftest import FLIGHTS, ORDERS, Command
from tests.unit.cli.driver import savepoint

NONE = {"duration": 0, "persisted": 0}
"""Nothing is in flight between stages."""


def test_statistics_prints_a_table(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("show", FLIGHTS, RUN, "--statistics")
    assert (done.code, done.err) == (0, "")
    assert done.lines[:2] == [
        f"STATISTICS {FLIGHTS}, run {RUN}",
        "  counts      6 checkpoints: 5 completed, 1 failed, 0 in progress; 1 attempt restored",
    ]
    assert done.lines[-1] == "  pace        interval 10 min, min_pause 0.0 s: not in force (no query runs)"
    assert done.lines[-5].split() == ["completed", "min", "avg", "p50", "p90", "p99", "max"]


def test_restored_savepoint_is_named_by_its_directory(job: Job, checkpoints: Command) -> None:
    """Nobody knows its id without opening it."""
    other = Job(job.store, "payments")
    other.start()
    made = savepoint(other)
    checkpoints("restore", "orders", "--from", str(made.target), "--yes")
    job.start(try_number=2)
    (line,) = (text for text in checkpoints("show", "orders", "--statistics").lines if text.startswith("  restored"))
    assert line.split() == ["restored", made.target, *day_and_time(job.state.attempts[-1].at).split()]


OF_QUERIES = ["interval_s", "min_pause_s", "mode", "aligned_timeout_s"]


def test_statistics_as_json(running: Recorded, checkpoints: Command) -> None:
    found = json.loads(checkpoints("show", FLIGHTS, "--statistics", "-o", "json").out)
    assert found.pop("config") == running.state.config.to_json() | {"interval_s": 600, "min_pause_s": 0}
    assert found.pop("not_in_force") == OF_QUERIES
    assert found == statistics.checkpoints(running.state)
    assert found["counts"] == {"restored": 0, "total": 4, "in_progress": 1, "completed": 3, "failed": 0}


def test_pace_is_in_force_while_a_query_runs(store: LocalStore, checkpoints: Command) -> None:
    job = Job(store)
    job.start(interval="2 min", min_pause="1 min", timeout="3 min")
    found = json.loads(checkpoints("show", "orders", "--statistics", "-o", "json").out)
    assert (found["config"]["interval_s"], found["config"]["min_pause_s"], found["not_in_force"]) == (
        120,
        60,
        OF_QUERIES,
    )
    job.coordinator.journal.append(
        LocateQuery(epoch=1, uid="totals", path="query/totals/1-abc", taken_from=None, begun=-1, committed=-1)
    )
    Heart(store, job.keys.attempt_beat(1), Beat(epoch=1, queries=(QueryProgress(uid="totals", batch=7),))).pulse()
    found = json.loads(checkpoints("show", "orders", "--statistics", "-o", "json").out)
    assert found["not_in_force"] == []
    assert checkpoints("show", "orders", "--statistics").lines[-1] == "  pace        interval 2 min, min_pause 1 min"


def test_statistics_of_a_checkpoint_as_json(lake: LocalStore, checkpoints: Command) -> None:
    found = json.loads(checkpoints("show", ORDERS, "2", "--statistics", "-o", "json").out)
    assert (found["id"], found["status"]) == (2, "COMPLETED")
    assert found["tasks"] == {
        "clean": {"sync": 300, "checkpointed_size": 4096, "state_size": 4096, "alignment": NONE},
        "high_water": {"sync": 0, "checkpointed_size": 0, "state_size": 0, "alignment": NONE},
    }


@pytest.mark.parametrize(("kind", "type_"), [("checkpoint", "UNALIGNED_CHECKPOINT"), ("savepoint", "SAVEPOINT")])
def test_checkpoint_with_rows_in_flight_is_unaligned(job: Job, checkpoints: Command, kind: str, type_: str) -> None:
    number = completed_with_rows_in_flight(job, kind)
    found = json.loads(checkpoints("show", "orders", f"chk-{number}", "--statistics", "-o", "json").out)
    assert (found["checkpoint_type"], found["persisted_data"]) == (type_, 1944)
    assert found["tasks"]["orders"]["alignment"] == {"duration": 750, "persisted": 1944}
    for more in ((), ("--statistics",)):
        assert "; unaligned, 1.9 KiB in flight" in checkpoints("show", "orders", f"chk-{number}", *more).out
    listed = json.loads(checkpoints("show", "orders", "--statistics", "-o", "json").out)["history"][0]
    assert (listed["id"], listed["checkpoint_type"], listed["persisted_data"]) == (number, type_, 1944)


def completed_with_rows_in_flight(job: Job, kind: str) -> int:
    """Return the id of a checkpoint of a query that had yet to read a file of another one."""
    (orders,) = chained().states
    number = job.state.next_id
    at_target = Request(token="asked", kind=kind, nonce="n" * 32, folder=f"{job.store.uri}/savepoints")
    job.coordinator.trigger(at_target if kind == "savepoint" else Request(token="asked"))
    job.coordinator.acknowledge(acknowledgement(number, orders, inc=job.state.incarnation))
    job.coordinator.complete(number)
    return number


def test_statistics_of_a_checkpoint_print_its_states(lake: LocalStore, checkpoints: Command) -> None:
    lines = checkpoints("show", ORDERS, "2", "--statistics").lines
    assert lines == [
        "chk-2 completed at stage 'clean': 2 states, 4.0 KiB, 4.0 KiB new  [CKP200]",
        " state       sync   new      size",
        " clean       0.3 s  4.0 KiB  4.0 KiB",
        " high_water  0.0 s  0 B      0 B",
    ]


def test_reused_state_has_no_new_bytes(lake: LocalStore, checkpoints: Command) -> None:
    found = json.loads(checkpoints("show", FLIGHTS, RUN, "chk-5", "--statistics", "-o", "json").out)
    assert found["tasks"]["clean"] == {"sync": 0, "checkpointed_size": 0, "state_size": 18 * 1024, "alignment": NONE}
    assert found["tasks"]["delays"] == {
        "sync": 200, "checkpointed_size": 1944, "state_size": 1944, "alignment": NONE,
    }  # fmt: skip


def test_aborted_checkpoint_has_no_states(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("show", FLIGHTS, RUN, "chk-4", "--statistics")
    assert done.lines[0].startswith("ABORTED chk-4 of flights_etl.delays: attempt replaced")
    found = json.loads(checkpoints("show", FLIGHTS, RUN, "chk-4", "--statistics", "-o", "json").out)
    assert (found["status"], found["failure_message"], found["tasks"]) == ("FAILED", "attempt replaced", {})


def test_statistics_as_columns(lake: LocalStore, checkpoints: Command) -> None:
    rows = [line.split("\t") for line in checkpoints("show", FLIGHTS, RUN, "--statistics", "-o", "plain").lines]
    assert [row[0] for row in rows] == ["duration", "new bytes", "size"]
    assert rows[0][1:3] == ["1.0 s", "5.0 s"]


def test_statistics_of_an_absent_checkpoint_exit_with_4(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("show", FLIGHTS, RUN, "chk-7", "--statistics")
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("chk-7: flights_etl.delays, run scheduled__2026-11-20 has no such checkpoint")
