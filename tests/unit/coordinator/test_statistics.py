"""Statistics in the shape of Flink's REST answers (its documentation, "REST API", ``/jobs/:jobid/checkpoints``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.errors import CheckpointNotFound
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import CheckpointTriggered, Point
from airflow_checkpoint_provider.protocol.metadata import Measures
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS
from tests.support.histories import History, complete, entry
from tests.support.recorded import Recorded, at, second_attempt, three_stages

ROOT = "s3://lake/ckp"
RUN = "jobs/flights_etl.delays/runs/scheduled__2026-11-20"
KIB = 1024

SPREAD = {"min", "max", "avg", "p50", "p90", "p95", "p99", "p999"}
MEASURED = {
    "checkpointed_size",
    "state_size",
    "end_to_end_duration",
    "alignment_buffered",
    "processed_data",
    "persisted_data",
}
TASK = {"id", "status", "latest_ack_timestamp", "num_subtasks", "num_acknowledged_subtasks", *MEASURED}
ENTRY = TASK | {"is_savepoint", "savepointFormat", "trigger_timestamp", "checkpoint_type", "tasks"}
ENDS = {
    "IN_PROGRESS": set(),
    "COMPLETED": {"external_path", "discarded"},
    "FAILED": {"failure_timestamp", "failure_message"},
}
ALIGNMENT = {"buffered", "processed", "persisted", "duration"}


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Five completed, of which two are kept, one aborted, one pending; the second attempt began from chk-3."""
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    recorded.launched("09:00:00", try_number=3, generation=1, on_clear="continue")
    recorded.attached("09:00:01")
    recorded.triggered("stage 'more'", "09:10:00")
    return recorded


@pytest.fixture(scope="module")
def answer(recorded: Recorded) -> dict[str, Any]:
    return statistics.checkpoints(recorded.state, ROOT)


def triggered(kind: str, **other: Any) -> CheckpointTriggered:
    """The first of its history, by its first attempt."""
    return CheckpointTriggered(
        id=1,
        request="asked",
        try_number=1,
        checkpoint_kind=kind,
        epochs=(1,),
        branch=0,
        plan=("",),
        timeout_s=600.0,
        **other,
    )


# -- the shape -----------------------------------------------------------------------------------------------------------


def test_the_answer_has_flinks_fields(answer: dict[str, Any]) -> None:
    assert set(answer) == {"counts", "summary", "latest", "history"}
    assert set(answer["counts"]) == {"restored", "total", "in_progress", "completed", "failed"}
    assert set(answer["latest"]) == {"completed", "savepoint", "failed", "restored"}
    assert set(answer["latest"]["restored"]) == {"id", "restore_timestamp", "is_savepoint", "external_path"}
    assert {name: set(one) for name, one in answer["summary"].items()} == dict.fromkeys(MEASURED, SPREAD)


def test_a_line_of_the_history_has_flinks_fields_by_its_status(answer: dict[str, Any]) -> None:
    assert [one["status"] for one in answer["history"]] == [
        "IN_PROGRESS",
        "COMPLETED",
        "COMPLETED",
        "FAILED",
        *["COMPLETED"] * 3,
    ]
    for one in answer["history"]:
        assert set(one) == ENTRY | ENDS[one["status"]]
        assert one["tasks"] == {}


def test_details_have_a_task_for_each_state(recorded: Recorded) -> None:
    found = statistics.details(recorded.state, 6, ROOT)
    assert set(found) == ENTRY | ENDS["COMPLETED"] | {"time_in_queue"}
    assert set(found["tasks"]) == {"clean", "weather", "planes", "delays", "rows"}
    assert all(set(task) == TASK for task in found["tasks"].values())


def test_what_waited_in_the_queue_says_how_long() -> None:
    history = History()
    history.started()
    for request in ("one", "two"):
        history.do(c.Trigger(request=request, origin="task"))
    history.write()
    history.completed(number=1)
    assert [statistics.details(history.state, number, ROOT)["time_in_queue"] for number in (1, 2)] == [0, 120_000]


def test_a_task_has_a_subtask_for_each_application(recorded: Recorded) -> None:
    found = statistics.subtasks(recorded.state, 3, "planes")
    assert set(found) == TASK | {"summary", "subtasks"}
    summary = found["summary"]
    assert set(summary) == {
        "checkpointed_size",
        "state_size",
        "end_to_end_duration",
        "checkpoint_duration",
        "alignment",
        "start_delay",
    }
    assert set(summary["checkpoint_duration"]) == {"sync", "async"}
    assert set(summary["alignment"]) == ALIGNMENT
    for name in ("checkpointed_size", "state_size", "end_to_end_duration", "start_delay"):
        assert set(summary[name]) == SPREAD
    (one,) = found["subtasks"]
    assert set(one) == {
        "index", "status", "ack_timestamp", "end_to_end_duration", "checkpointed_size", "state_size", "checkpoint",
        "alignment", "start_delay", "unaligned_checkpoint", "aborted",
    }  # fmt: skip
    assert (set(one["checkpoint"]), set(one["alignment"])) == ({"sync", "async"}, ALIGNMENT)


def test_the_configuration_has_flinks_fields(recorded: Recorded) -> None:
    found = statistics.config(recorded.state, ROOT)
    assert set(found) == {
        "mode", "interval", "timeout", "min_pause", "max_concurrent", "externalization", "state_backend",
        "checkpoint_storage", "unaligned_checkpoints", "tolerable_failed_checkpoints", "aligned_checkpoint_timeout",
        "checkpoints_after_tasks_finish", "state_changelog_enabled", "changelog_periodic_materialization_interval",
        "changelog_storage",
    }  # fmt: skip
    assert set(found["externalization"]) == {"enabled", "delete_on_cancellation"}


# -- what stands in it ---------------------------------------------------------------------------------------------------


def test_counts(answer: dict[str, Any]) -> None:
    assert answer["counts"] == {"restored": 2, "total": 7, "in_progress": 1, "completed": 5, "failed": 1}


def test_latest(answer: dict[str, Any]) -> None:
    latest = answer["latest"]
    assert (latest["completed"]["id"], latest["savepoint"], latest["failed"]["id"]) == (6, None, 4)
    assert latest["restored"] == {
        "id": 6,
        "restore_timestamp": statistics.timestamp(at("09:00:01")),
        "is_savepoint": False,
        "external_path": f"{ROOT}/{RUN}/chk-6",
    }


def test_a_completed_one(answer: dict[str, Any]) -> None:
    assert answer["history"][4] == {
        "id": 3, "status": "COMPLETED", "is_savepoint": False, "savepointFormat": None, "checkpoint_type": "CHECKPOINT",
        "trigger_timestamp": 1795227266000, "latest_ack_timestamp": 1795227273000, "end_to_end_duration": 7000,
        "checkpointed_size": 14438, "state_size": 62668, "alignment_buffered": 0, "processed_data": 0, "persisted_data": 0,
        "num_subtasks": 1, "num_acknowledged_subtasks": 1, "tasks": {},
        "external_path": f"{ROOT}/{RUN}/chk-3", "discarded": True,
    }  # fmt: skip
    assert [one["discarded"] for one in answer["history"] if one["status"] == "COMPLETED"] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_pending_one_is_not_known_to_be_acknowledged(answer: dict[str, Any]) -> None:
    one = answer["history"][0]
    assert (one["latest_ack_timestamp"], one["end_to_end_duration"], one["num_acknowledged_subtasks"]) == (-1, -1, 0)


@pytest.mark.parametrize(
    ("aborted", "message", "acknowledged"),
    [
        (
            c.Abort(id=1, reason="expired", phase="finalize", words="nobody finalized it"),
            "expired: nobody finalized it",
            1,
        ),
        (c.Abort(id=1, reason="store failed", phase="seal", missing=("",)), "store failed", 0),
        (c.Abort(id=1, reason="by hand", phase="acknowledge"), "by hand", 0),
        (c.Abort(id=1, reason="too many groups", phase="complete", words="4 of 3"), "too many groups: 4 of 3", 1),
    ],
)
def test_the_cause_of_a_failure_is_its_reason_and_words(aborted: c.Abort, message: str, acknowledged: int) -> None:
    history = History()
    history.started()
    history.triggered()
    history.do(aborted)
    (one,) = statistics.checkpoints(history.state, ROOT)["history"]
    assert (one["failure_message"], one["num_acknowledged_subtasks"]) == (message, acknowledged)
    assert one["failure_timestamp"] - one["trigger_timestamp"] == one["end_to_end_duration"] == 60_000


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
def test_kinds(kind: str, type_: str, savepoint: bool) -> None:
    history = History()
    history.started()
    history.write(triggered(kind))
    history.completed(number=1)
    found = statistics.checkpoints(history.state, ROOT)
    (one,) = found["history"]
    assert (one["checkpoint_type"], one["is_savepoint"], one["savepointFormat"]) == (
        type_,
        savepoint,
        "NATIVE" if savepoint else None,
    )
    assert found["latest"]["savepoint" if savepoint else "completed"] == one
    assert found["latest"]["completed" if savepoint else "savepoint"] is None


def test_a_state_that_was_handed_on_was_not_written_again(recorded: Recorded) -> None:
    clean, delays = (statistics.details(recorded.state, 5, ROOT)["tasks"][uid] for uid in ("clean", "delays"))
    assert (clean["checkpointed_size"], clean["state_size"]) == (0, 18 * KIB)
    assert (delays["checkpointed_size"], delays["state_size"]) == (1944, 1944)
    (clean,) = statistics.subtasks(recorded.state, 5, "clean")["subtasks"]
    (delays,) = statistics.subtasks(recorded.state, 5, "delays")["subtasks"]
    assert (clean["checkpoint"], delays["checkpoint"]) == ({"sync": 0, "async": 0}, {"sync": 200, "async": 0})


@pytest.mark.parametrize(("barrier", "delay"), [("stage 'clean'", 0), ("", 60_000)])
def test_what_was_asked_for_before_its_barrier_began_late(barrier: str, delay: int) -> None:
    history = History()
    history.started()
    number = history.triggered(barrier=barrier)
    history.completed(number=number)
    (one,) = statistics.subtasks(history.state, number, f"s{number}")["subtasks"]
    assert one["start_delay"] == delay


def test_a_savepoint_lies_at_its_target() -> None:
    history = History()
    history.started()
    target = "s3://lake/savepoints/savepoint-flights.delays-1-n0nce"
    history.write(triggered("savepoint", target=target))
    history.completed(number=1)
    assert statistics.checkpoints(history.state, ROOT)["latest"]["savepoint"]["external_path"] == target


@pytest.mark.parametrize(
    ("pointer", "number", "savepoint"),
    [
        (f"{ROOT}/jobs/other.job/job/chk-41", 41, False),
        ("s3://lake/savepoints/savepoint-other.job-41-n0nce", -1, True),
    ],
)
def test_a_restore_from_elsewhere(pointer: str, number: int, savepoint: bool) -> None:
    history = History(scope="day-1")
    history.started(base=Point(pointer=pointer), restore=pointer)
    restored = statistics.checkpoints(history.state, ROOT)["latest"]["restored"]
    assert (restored["id"], restored["is_savepoint"], restored["external_path"]) == (number, savepoint, pointer)


@pytest.mark.parametrize("ask", [statistics.details, statistics.subtasks])
def test_what_is_not_listed(recorded: Recorded, ask: Any) -> None:
    with pytest.raises(CheckpointNotFound, match="lists no such checkpoint"):
        ask(recorded.state, 99, "clean")


@pytest.mark.parametrize(("number", "held"), [(1, "its states: clean"), (4, "it was never completed")])
def test_a_state_that_is_not_in_it(recorded: Recorded, number: int, held: str) -> None:
    with pytest.raises(CheckpointNotFound, match=held):
        statistics.subtasks(recorded.state, number, "nothing")


def test_what_is_in_force() -> None:
    history = History()
    assert statistics.config(history.state, ROOT)["timeout"] == 600_000
    history.started(checkpointing={"timeout_s": 1.5, "retention": KeepAll().to_json()})
    found = statistics.config(history.state, ROOT)
    assert (found["timeout"], found["interval"], found["min_pause"]) == (1500, 600_000, 0)
    assert (found["mode"], found["checkpoint_storage"]) == ("exactly_once", ROOT)
    assert found["tolerable_failed_checkpoints"] == 2**31 - 1
    history.started(try_number=2, checkpointing=CheckpointConfig(min_pause="1 h", tolerable_failures=3).to_json())
    found = statistics.config(history.state, ROOT)
    assert (found["interval"], found["min_pause"], found["tolerable_failed_checkpoints"]) == (3_600_000, 3_600_000, 3)


def test_an_empty_history() -> None:
    found = statistics.checkpoints(History().state, ROOT)
    assert set(found["counts"].values()) == {0}
    assert set(found["latest"].values()) == {None}
    assert {value for one in found["summary"].values() for value in one.values()} == {0}


# -- bounds --------------------------------------------------------------------------------------------------------------


def test_restores_are_counted_beyond_the_attempts_that_are_listed() -> None:
    history = History()
    history.started()
    history.completed()
    for try_number in range(2, KEPT_RECORDS + 12):
        history.started(try_number=try_number)
    assert len(history.state.attempts) == KEPT_RECORDS
    assert statistics.checkpoints(history.state, ROOT)["counts"]["restored"] == KEPT_RECORDS + 10


def test_what_is_over_leaves_the_history_and_stays_counted() -> None:
    history = History()
    history.started()
    for number in range(1, KEPT_RECORDS + 11):
        history.do(c.Abort(id=history.triggered(), reason=f"the {number}th"))
    found = statistics.checkpoints(history.state, ROOT)
    assert (found["counts"]["failed"], len(found["history"])) == (KEPT_RECORDS + 10, KEPT_RECORDS)
    with pytest.raises(CheckpointNotFound):
        statistics.details(history.state, 10, ROOT)


@given(st.lists(st.sampled_from(["complete", "abort", "retry", "pend"]), max_size=30))
def test_counts_add_up(steps: list[str]) -> None:
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
    found = statistics.checkpoints(history.state, ROOT)
    counts, listed = found["counts"], [one["status"] for one in found["history"]]
    assert (
        counts["total"] == counts["in_progress"] + counts["completed"] + counts["failed"] == history.state.next_id - 1
    )
    assert counts["in_progress"] == listed.count("IN_PROGRESS")
    assert (counts["completed"], counts["failed"]) == (listed.count("COMPLETED"), listed.count("FAILED"))


# -- percentiles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "p", "estimate"),
    [
        ([], 50, 0),
        ([7], 99.9, 7),
        ([1, 2], 50, 1.5),
        ([3, 1, 2], 50, 2),
        ([1, 2, 3, 4], 50, 2.5),
        ([1, 2, 3, 4], 25, 1.25),
        ([1, 2, 3, 4], 10, 1),
        ([1, 2, 3, 4], 90, 4),
        ([15, 20, 35, 40, 50], 40, 26),
        (list(range(1, 100)), 99, 99),
        (list(range(1, 200)), 99, 198),
    ],
)
def test_percentiles_are_those_of_commons_math(values: list[int], p: float, estimate: float) -> None:
    """``Percentile``, type LEGACY: position p(n + 1) / 100, below the first the smallest, from the last on the greatest."""
    assert statistics.percentile(values, p) == pytest.approx(estimate)


@given(st.lists(st.integers(0, 2**50)))
def test_a_spread_is_in_order(values: list[int]) -> None:
    found = statistics.spread(values)
    assert found["min"] <= found["avg"] <= found["max"]
    rising = [found[name] for name in ("min", "p50", "p90", "p95", "p99", "p999", "max")]
    assert rising == sorted(rising)


# -- rows that need a history of their own -------------------------------------------------------------------------------

TARGET = "s3://lake/savepoints/savepoint-flights.delays-1-n0nce"
OWN = f"{ROOT}/jobs/flights.delays/job/chk-1"


@pytest.mark.parametrize(
    ("kind", "listed", "savepoint", "path"),
    [
        ("checkpoint", True, False, OWN),
        ("savepoint", True, True, TARGET),
        ("checkpoint", False, False, OWN),
        ("savepoint", False, False, OWN),  # what it was is not known any more
    ],
)
def test_a_restore_from_ones_own(kind: str, listed: bool, savepoint: bool, path: str) -> None:
    history = History()
    history.started()
    history.write(triggered(kind, target=TARGET if kind == "savepoint" else None))
    history.completed(number=1)
    history.started(try_number=2)
    if not listed:
        history.state = replace(history.state, checkpoints=())
    restored = statistics.checkpoints(history.state, ROOT)["latest"]["restored"]
    assert (restored["id"], restored["is_savepoint"], restored["external_path"]) == (1, savepoint, path)


def test_a_checkpoint_with_a_target_and_a_savepoint_without_are_reached_through_their_journal() -> None:
    """Neither is written; a journal that holds one is read all the same."""
    for kind, target in (("checkpoint", TARGET), ("savepoint", None)):
        history = History()
        history.started()
        history.write(triggered(kind, target=target))
        history.completed(number=1)
        assert statistics.checkpoints(history.state, ROOT)["history"][0]["external_path"] == OWN


def test_what_is_condemned_is_discarded_as_what_is_deleted() -> None:
    history = History()
    history.started()
    for _ in range(4):
        history.completed()
    history.condemned(1, 2)
    history.do(c.Forget(ids=(1,)))
    assert [one["discarded"] for one in statistics.checkpoints(history.state, ROOT)["history"]] == [
        False,
        False,
        True,
        True,
    ]


def test_the_summary_is_of_completed_ones() -> None:
    history = History()
    history.started()
    history.completed()
    number = history.triggered()
    for _ in range(5):
        history.write()  # minutes go by
    history.do(c.Abort(id=number, reason="expired"))
    found = statistics.checkpoints(history.state, ROOT)
    assert found["history"][0]["end_to_end_duration"] == 6 * 60_000
    assert found["summary"]["end_to_end_duration"]["max"] == 60_000


def test_the_time_of_the_parts_does_not_count_as_delay() -> None:
    history = History()
    history.started()
    number = history.triggered(barrier="")
    measures = Measures(checkpoint=number, sync_s=2.0, async_s=0.5)
    history.do(complete(number, replace(entry("s", (), number), measures=measures)))
    (one,) = statistics.subtasks(history.state, number, "s")["subtasks"]
    assert (one["checkpoint"], one["start_delay"]) == ({"sync": 2000, "async": 500}, 60_000 - 2500)
    assert (one["unaligned_checkpoint"], one["aborted"]) == (False, False)


def test_what_never_changes() -> None:
    found = statistics.config(History().state, ROOT)
    assert found["externalization"] == {"enabled": True, "delete_on_cancellation": False}
    assert found["checkpoints_after_tasks_finish"] is True
    assert not any(
        found[name] for name in ("unaligned_checkpoints", "aligned_checkpoint_timeout", "state_changelog_enabled")
    )
    assert (found["changelog_periodic_materialization_interval"], found["changelog_storage"]) == (0, "")


def test_percentiles_are_called_what_they_are() -> None:
    assert statistics.spread(range(1, 1000)) == {
        "min": 1, "max": 999, "avg": 500, "p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999,
    }  # fmt: skip
