"""Statistics with the names of Flink's REST answers (its documentation, "REST API", ``/jobs/:jobid/checkpoints``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import updates
from airflow_checkpoint_provider.protocol.events import (
    CheckpointsCondemned,
    CheckpointsForgotten,
    CheckpointTriggered,
    Point,
    Request,
)
from airflow_checkpoint_provider.protocol.transitions import fold
from airflow_checkpoint_provider.text import summary_table
from tests.support.histories import History
from tests.support.recorded import Recorded, at, second_attempt, three_stages

ROOT = "s3://lake/ckp"
RUN = "jobs/flights_etl.delays/runs/scheduled__2026-11-20"

SPREAD = {"count", "min", "max", "avg", "p50", "p90", "p99"}
MEASURED = {"checkpointed_size", "state_size", "end_to_end_duration"}
SUMMARY = MEASURED | {"requested_duration"}
ENTRY = MEASURED | {
    "id", "status", "is_savepoint", "checkpoint_type", "trigger_timestamp", "latest_ack_timestamp", "time_in_queue",
    "persisted_data", "metadata_size",
}  # fmt: skip
ENDS = {
    "IN_PROGRESS": set(),
    "COMPLETED": {"external_path", "discarded"},
    "FAILED": {"failure_timestamp", "failure_message"},
}


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Record five completed checkpoints, two of them kept, one aborted and one pending; attempt 2 starts from chk-3."""
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    recorded.launched("09:00:00", try_number=3, generation=1, on_clear="continue")
    recorded.attached("09:00:01")
    recorded.triggered("stage 'more'", "09:10:00")
    return recorded


@pytest.fixture(scope="module")
def answer(recorded: Recorded) -> dict[str, Any]:
    return statistics.checkpoints(recorded.state)


def triggered(kind: str, **other: Any) -> CheckpointTriggered:
    """Return the trigger of chk-1 by attempt 1."""
    return CheckpointTriggered(
        request=Request(token="asked", try_number=1, kind=kind, nonce="n0nce"),
        id=1,
        epochs=(1,),
        branch=0,
        plan=("",),
        timeout_s=600.0,
        **other,
    )


# -- fields --------------------------------------------------------------------------------------------------------------


def test_answer_has_the_fields_of_flink(answer: dict[str, Any]) -> None:
    assert set(answer) == {"counts", "summary", "latest", "history"}
    assert set(answer["counts"]) == {"restored", "total", "in_progress", "completed", "failed"}
    assert set(answer["latest"]) == {"completed", "savepoint", "failed", "restored"}
    assert set(answer["latest"]["restored"]) == {"id", "restore_timestamp", "external_path"}
    assert {name: set(spread) for name, spread in answer["summary"].items()} == dict.fromkeys(SUMMARY, SPREAD)


def test_latest_checkpoint_is_the_one_that_completed_last_whatever_its_id(recorded: Recorded) -> None:
    """A savepoint that was copied for an hour completes after checkpoints with higher ids."""
    state = recorded.state
    first = next(checkpoint for checkpoint in state.checkpoints if checkpoint.completed_at)
    assert first.completion
    slow = replace(first, completion=replace(first.completion, n=state.n))
    checkpoints = tuple(slow if checkpoint is first else checkpoint for checkpoint in state.checkpoints)
    assert statistics.checkpoints(state)["latest"]["completed"]["id"] > first.id
    assert statistics.checkpoints(replace(state, checkpoints=checkpoints))["latest"]["completed"]["id"] == first.id


def test_history_is_bounded_under_a_policy_that_keeps_all(recorded: Recorded) -> None:
    state = recorded.state
    kept = state.retained[-1]
    many = replace(state, checkpoints=tuple(replace(kept, id=number) for number in range(1, 1001)))
    answer = statistics.checkpoints(many)
    assert [line["id"] for line in answer["history"]] == [*range(1000, 900, -1)]
    assert answer["latest"]["completed"]["id"] == 1000


def test_history_entry_has_the_fields_of_its_status(answer: dict[str, Any]) -> None:
    assert [entry["status"] for entry in answer["history"]] == [
        "IN_PROGRESS",
        "COMPLETED",
        "COMPLETED",
        "FAILED",
        *["COMPLETED"] * 3,
    ]
    for entry in answer["history"]:
        assert set(entry) == ENTRY | ENDS[entry["status"]]


def test_entry_has_its_time_in_the_queue() -> None:
    history = History()
    history.started()
    for request in ("one", "two"):
        history.do(c.Trigger(request=Request(token=request, origin="task")))
    history.write()
    history.completed(number=1)
    assert [statistics.entry(checkpoint)["time_in_queue"] for checkpoint in history.state.checkpoints] == [0, 120_000]


# -- values --------------------------------------------------------------------------------------------------------------


def test_counts_by_status(answer: dict[str, Any]) -> None:
    assert answer["counts"] == {"restored": 2, "total": 7, "in_progress": 1, "completed": 5, "failed": 1}


def test_latest_by_kind(answer: dict[str, Any]) -> None:
    latest = answer["latest"]
    assert (latest["completed"]["id"], latest["savepoint"], latest["failed"]["id"]) == (6, None, 4)
    assert latest["restored"] == {
        "id": 6,
        "restore_timestamp": statistics.timestamp(at("09:00:01")),
        "external_path": None,
    }


def test_entry_of_a_completed_checkpoint(answer: dict[str, Any]) -> None:
    assert answer["history"][4] == {
        "id": 3, "status": "COMPLETED", "is_savepoint": False, "checkpoint_type": "CHECKPOINT",
        "trigger_timestamp": 1795227266000, "latest_ack_timestamp": 1795227273000, "end_to_end_duration": 7000,
        "time_in_queue": 0, "checkpointed_size": 14438, "state_size": 62668, "persisted_data": 0, "metadata_size": 1505,
        "external_path": None, "discarded": True,
    }  # fmt: skip
    assert [entry["discarded"] for entry in answer["history"] if entry["status"] == "COMPLETED"] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_duration_of_a_pending_checkpoint_is_unknown(answer: dict[str, Any]) -> None:
    pending = answer["history"][0]
    assert (pending["latest_ack_timestamp"], pending["end_to_end_duration"]) == (-1, -1)


@pytest.mark.parametrize(
    ("aborted", "message"),
    [
        (
            c.Abort(id=1, reason="expired", phase="finalize", details="nobody finalized it"),
            "expired: nobody finalized it",
        ),
        (c.Abort(id=1, reason="store failed", phase="seal", missing=("",)), "store failed"),
    ],
)
def test_failure_message_is_reason_and_details(aborted: c.Abort, message: str) -> None:
    history = History()
    history.started()
    history.triggered()
    history.do(aborted)
    (entry,) = statistics.checkpoints(history.state)["history"]
    assert entry["failure_message"] == message
    assert entry["failure_timestamp"] - entry["trigger_timestamp"] == entry["end_to_end_duration"] == 60_000


@pytest.mark.parametrize(
    ("kind", "type_", "savepoint"),
    [
        ("checkpoint", "CHECKPOINT", False),
        ("full_checkpoint", "CHECKPOINT", False),
        ("savepoint", "SAVEPOINT", True),
        ("suspend_savepoint", "SYNC_SAVEPOINT", True),
        ("terminate_savepoint", "SYNC_SAVEPOINT", True),
    ],
)
def test_entry_has_the_type_of_its_kind(kind: str, type_: str, savepoint: bool) -> None:
    history = History()
    history.started()
    history.write(triggered(kind))
    history.completed(number=1)
    found = statistics.checkpoints(history.state)
    (entry,) = found["history"]
    assert (entry["checkpoint_type"], entry["is_savepoint"]) == (type_, savepoint)
    assert found["latest"]["savepoint" if savepoint else "completed"] == entry
    assert found["latest"]["completed" if savepoint else "savepoint"] is None


def test_external_path_of_a_savepoint_is_its_target() -> None:
    history = History()
    history.started()
    target = "s3://lake/savepoints/savepoint-flights.delays-1-n0nce"
    history.write(triggered("savepoint", target=target))
    history.completed(number=1)
    assert statistics.checkpoints(history.state)["latest"]["savepoint"]["external_path"] == target


def test_id_of_a_foreign_restore_point_is_unknown() -> None:
    pointer = "s3://lake/savepoints/savepoint-other.job-41-n0nce"
    history = History(scope="day-1")
    history.started(base=Point(pointer=pointer), restore=pointer)
    restored = statistics.checkpoints(history.state)["latest"]["restored"]
    assert (restored["id"], restored["external_path"]) == (-1, pointer)


def test_empty_history_has_zeros() -> None:
    found = statistics.checkpoints(History().state)
    assert set(found["counts"].values()) == {0}
    assert set(found["latest"].values()) == {None}
    assert {value for spread in found["summary"].values() for value in spread.values()} == {0}


# -- bounds --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a history keep a few records instead of a hundred."""
    monkeypatch.setattr(updates, "KEPT_RECORDS", 10)
    return 10


def test_restores_of_unlisted_attempts_are_counted(kept: int) -> None:
    history = History()
    history.started()
    history.completed()
    for try_number in range(2, kept + 12):
        history.started(try_number=try_number)
    assert len(history.state.attempts) == kept
    assert statistics.checkpoints(history.state)["counts"]["restored"] == kept + 10


def test_failures_no_longer_listed_are_counted(kept: int) -> None:
    history = History()
    history.started()
    for number in range(1, kept + 11):
        history.do(c.Abort(id=history.triggered(), reason=f"the {number}th"))
    found = statistics.checkpoints(history.state)
    assert (found["counts"]["failed"], len(found["history"])) == (kept + 10, kept)


def test_latest_checkpoints_stay_listed_however_many_end_after_them(kept: int) -> None:
    history = History()
    history.started()
    failed = history.triggered()
    history.do(c.Abort(id=failed, reason="declined"))
    savepoint = history.triggered("mine", kind="savepoint", folder="file:///savepoints", nonce="n" * 32)
    history.completed(number=savepoint)
    history.write(CheckpointsCondemned(ids=(savepoint,)), CheckpointsForgotten(ids=(savepoint,)))
    for _ in range(kept + 10):
        completed = history.completed()
        history.write(CheckpointsCondemned(ids=(completed,)), CheckpointsForgotten(ids=(completed,)))
    latest = statistics.checkpoints(history.state)["latest"]
    assert (latest["completed"]["id"], latest["savepoint"]["id"], latest["failed"]["id"]) == (
        completed,
        savepoint,
        failed,
    )
    assert len(history.state.checkpoints) == kept + 2, "the rest of the list stays bounded"
    for _ in range(kept + 10):
        history.do(c.Abort(id=history.triggered(), reason="by hand"))
    assert statistics.checkpoints(history.state)["latest"]["completed"]["id"] == completed


def test_size_of_the_metadata_is_that_of_the_seal(recorded: Recorded) -> None:
    newest = recorded.state.retained[-1]
    seal = recorded.store.read(recorded.keys.seal(newest.id))
    assert seal
    assert statistics.entry(newest)["metadata_size"] == len(seal)
    assert statistics.entry(replace(newest, completion=None))["metadata_size"] == -1


@given(st.lists(st.sampled_from(["complete", "abort", "retry", "pend"]), max_size=30))
def test_counts_add_up_after_any_steps(steps: list[str]) -> None:
    history = History()
    tries = 1
    history.started()
    for step in steps:
        if step == "retry":
            tries += 1
            history.started(try_number=tries)
        elif not history.state.pending:
            number = history.triggered()
            if step == "complete":
                history.completed(number=number)
            elif step == "abort":
                history.do(c.Abort(id=number, reason="by hand"))
    found = statistics.checkpoints(history.state)
    counts, listed = found["counts"], [entry["status"] for entry in found["history"]]
    assert (
        counts["total"] == counts["in_progress"] + counts["completed"] + counts["failed"] == history.state.next_id - 1
    )
    assert counts["in_progress"] == listed.count("IN_PROGRESS")
    assert (counts["completed"], counts["failed"]) == (listed.count("COMPLETED"), listed.count("FAILED"))


# -- percentiles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([], (0, 0, 0, 0, 0, 0)),
        ([7], (7, 7, 7, 7, 7, 7)),
        ([4, 1, 3, 2], (1, 4, 2, 2, 4, 4)),
        (range(1, 201), (1, 200, 100, 100, 180, 198)),
    ],
)
def test_spread_of_values(values: Sequence[int], found: tuple[int, ...]) -> None:
    spread = statistics.spread(values)
    assert tuple(spread[name] for name in ("min", "max", "avg", "p50", "p90", "p99")) == found


@given(st.lists(st.integers(0, 2**50)))
def test_spread_is_in_order(values: list[int]) -> None:
    found = statistics.spread(values)
    assert found["min"] <= found["avg"] <= found["max"]
    rising = [found[name] for name in ("min", "p50", "p90", "p99", "max")]
    assert rising == sorted(rising)


# -- rows that need a history of their own -------------------------------------------------------------------------------


def test_condemned_checkpoint_is_discarded() -> None:
    history = History()
    history.started()
    for _ in range(4):
        history.completed()
    history.condemned(1, 2)
    history.do(c.Forget(ids=(1,)))
    listed = statistics.checkpoints(history.state)["history"]
    assert [found["discarded"] for found in listed] == [False, False, True, True]


def test_summary_counts_completed_checkpoints_only() -> None:
    history = History()
    history.started()
    history.completed()
    number = history.triggered()
    for _ in range(5):
        history.write()  # a minute passes
    history.do(c.Abort(id=number, reason="expired"))
    found = statistics.checkpoints(history.state)
    assert found["history"][0]["end_to_end_duration"] == 6 * 60_000
    assert found["summary"]["requested_duration"]["max"] == 60_000  # no barrier is on record
    assert found["summary"]["end_to_end_duration"]["count"] == 0


def test_aborted_checkpoint_that_was_completed_before_is_no_completed_one(recorded: Recorded) -> None:
    """No decision aborts a completed checkpoint, but a stored entry may say so."""
    state = recorded.state
    events = [e.CheckpointAborted(id=kept.id, reason="x", phase="") for kept in state.checkpoints if kept.completion]
    aborted = fold(state, state.n + 1, state.at, events)
    answer = statistics.checkpoints(aborted)
    assert answer["latest"]["completed"] is None
    assert answer["latest"]["failed"]
    assert summary_table.statistics(aborted, answer)
