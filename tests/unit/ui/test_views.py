"""What the pages say of recorded histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress, RefusedStart
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint, Completion
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.launch_records import Branch
from airflow_checkpoint_provider.protocol.metadata import Measures, StateEntry
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text.summary_table import row
from airflow_checkpoint_provider.text.units import NONE
from airflow_checkpoint_provider.ui.views.checkpoints import Cost, Split, files_page, split
from airflow_checkpoint_provider.ui.views.job import JobPage, job_page, with_values
from airflow_checkpoint_provider.ui.views.jobs import Label, job_row
from tests.support.recorded import DAY, RUN, Recorded, at, second_attempt, shared_by_two_runs
from tests.unit.ui.readings import reading

NOW = at("04:00:00")


def page(recorded: Recorded, run: str = "", beat: Beat | None = None, alive: bool | None = None) -> JobPage:
    return job_page(
        HistoryReference("checkpoint_default", recorded.keys.prefix, run), reading(recorded, beat, alive), NOW
    )


def test_pending_checkpoint_says_whom_it_waits_for(running: Recorded) -> None:
    (row,) = page(running).pending
    assert (row.name, row.acknowledged, row.state.text) == ("chk-4", "0 of 1", "pending")
    assert row.waits_for == "the acknowledgement of the driver"


def test_page_moves_while_the_job_runs(running: Recorded, finished: Recorded) -> None:
    assert not page(finished).moves
    recorded = Recorded(job="a.b")
    recorded.started("22:00:20")
    assert page(recorded).moves


def test_attempts_have_their_checkpoints_and_their_story(finished: Recorded) -> None:
    second, first = page(finished).attempts
    assert (first.name, first.state.text, first.completed, first.aborted) == (
        "Attempt 1",
        "failed",
        ["chk-1", "chk-2", "chk-3"],
        ["chk-4"],
    )
    assert (second.state.text, second.started_from) == ("finished", "chk-3")
    assert any("retry: attempt 1 failed" in line for line in second.story)
    verdicts = {candidate.name: (candidate.verdict, candidate.why) for candidate in second.candidates}
    assert verdicts == {
        "chk-4": ("rejected", "never sealed, expired"),
        "chk-3": ("chosen", ""),
        "chk-2": ("older", "deleted since"),
        "chk-1": ("older", "deleted since"),
    }


def test_row_splits_the_duration_and_names_the_states(finished: Recorded) -> None:
    row = next(row for row in page(finished).checkpoints if row.id == 5)
    assert row.cost == Cost("1.2 s", "0.2 s", "1.0 s", "0.0 s", "63.1 KiB", "1.9 KiB", "0 B")
    assert row.acknowledged == "1 of 1"
    assert [state.uid for state in row.states] == ["clean", "delays", "planes", "weather"]


def at_a_barrier(**other: Any) -> Checkpoint:
    """Return a checkpoint whose stage waited for 0.5 s at its barrier, and which was completed 10 s after its trigger."""
    stage = StateEntry(uid="clean", kind="stage", run=RUN, new=True, measures=Measures(sync_s=0.5, alignment_s=2.0))
    common: dict[str, Any] = {
        "request": Request(token="t", barrier="stage 'clean'"),
        "triggered_at": at("22:00:10"),
        "completion": Completion(at=at("22:00:20"), n=2, digest="d", bytes=0, metadata_bytes=9, states=(stage,)),
    }
    return Checkpoint(id=1, epochs=(1,), branch=0, plan=("",), timeout_s=600.0, **common | other)


def test_parts_of_a_duration_add_up() -> None:
    """The job stands still before the trigger. The search for a cut is after it."""
    parts = split(State(), at_a_barrier(queued_at=at("22:00:07")))
    assert parts == Split(waiting=3.0 + 2.0, synchronous=0.5, asynchronous=8.0)
    assert parts.duration == 13.5


def test_part_that_is_not_known_is_said_as_missing() -> None:
    """Nobody knows when the barrier of a requested checkpoint came."""
    asked = at_a_barrier(request=Request(token="t", origin="people"), queued_at=at("22:00:07"))
    parts = split(State(), asked)
    assert parts == Split(waiting=None, synchronous=0.5, asynchronous=None, unsplit=12.5)
    assert parts.duration == 13.0
    late = split(State(), at_a_barrier(request=asked.request, triggered_at=f"{DAY}T22:00:19.800Z"))
    assert late.synchronous == pytest.approx(0.2)
    assert late.unsplit == 0.0
    assert row(State(), asked).async_s is None


def test_each_duration_of_a_recorded_history_is_the_sum_of_its_parts(finished: Recorded) -> None:
    finished.started("04:00:00", try_number=3, generation=1)
    asked = finished.coordinator.trigger(Request(token="people|1", origin="people"))
    finished.clock = at("04:00:30")
    finished.completed_now(asked)
    rows = {
        checkpoint.name: checkpoint.cost
        for checkpoint in page(finished).checkpoints
        if checkpoint.acknowledged == "1 of 1"
    }
    assert {name: (cost.took, cost.waiting, cost.synchronous, cost.asynchronous) for name, cost in rows.items()} == {
        "chk-7": ("30 s", NONE, "0.0 s", NONE),
        "chk-6": ("1.0 s", "0.0 s", "0.0 s", "1.0 s"),
        "chk-5": ("1.2 s", "0.0 s", "0.2 s", "1.0 s"),
        "chk-3": ("7.4 s", "0.0 s", "0.4 s", "7.0 s"),
        "chk-2": ("8.3 s", "0.0 s", "0.3 s", "8.0 s"),
        "chk-1": ("8.3 s", "0.0 s", "0.3 s", "8.0 s"),
    }


def test_aborted_row_says_who_was_missing_and_what_to_do(finished: Recorded) -> None:
    row = next(row for row in page(finished).checkpoints if row.id == 4)
    assert row.state.tone == "bad"
    assert any("missing     the driver at stage 'delays': slow disk" in line for line in row.story)
    assert any(line.strip().startswith("to do") for line in row.story)


def test_effect_of_an_abort_is_told_until_a_checkpoint_completes(running: Recorded) -> None:
    """It is told with the state of today, which says something else later."""

    def told() -> list[str]:
        row = next(row for row in page(running).checkpoints if row.id == 4)
        return [line.split()[0] for line in row.story[1:]]

    running.aborted(4, "02:55:00", "expired")
    assert told() == ["missing", "effect", "to"]
    running.stage("late", "03:10:00", "03:10:03", work_s=5, kib=1)
    assert told() == ["missing", "to"]


def test_silent_driver_is_said(running: Recorded) -> None:
    row = job_row("c", reading(running, alive=False), NOW)
    assert (row.state.text, row.state.tone) == ("running, no heartbeat", "bad")


def test_driver_that_may_be_dead_does_not_look_healthy(running: Recorded) -> None:
    """In the first minute of an API server nobody knows whether a driver on another host lives."""

    def label(beat: Beat | None, alive: bool | None = None) -> Label:
        return job_row("c", reading(running, beat, alive), NOW).state

    old, new = Beat(counter=3, at=at("03:00:00")), Beat(counter=3, at=at("03:59:30"))
    assert label(old) == Label("running, last seen", "busy", at("03:00:00"))
    assert label(None) == Label("running, last seen", "busy", running.state.at)
    assert label(new) == label(old, alive=True) == Label("running", "good")
    running.ended("03:01:00")
    assert label(old) == Label("finished", "good")


def test_attempt_and_launch_say_of_which_memory_they_died(running: Recorded) -> None:
    running.ended("02:51:07", "failed", 52, "task", cause="driver_heap")
    assert page(running).attempts[0].state == Label("failed: the driver ran out of memory (Java heap)", "bad")
    running.launched("03:02:10", try_number=2)
    running.launch_ended("03:02:12", cause="driver_overhead")
    assert page(running).attempts[0].state == Label("failed: the driver ran out of memory (its container's)", "bad")


def test_unprotected_since_is_that_of_a_living_driver(running: Recorded) -> None:
    beat = Beat(counter=3, at=at("03:00:00"), protected_since=at("02:14:33"))
    assert job_row("c", reading(running, beat, alive=True), NOW).unprotected_since == at("02:14:33")
    assert job_row("c", reading(running, beat, alive=False), NOW).unprotected_since == ""


def test_queries_are_those_of_the_heartbeat(running: Recorded) -> None:
    query = QueryProgress(
        uid="totals", batch=7, input_rate=10.0, processed_rate=9.5, rows_behind=12, state_rows=3, state_bytes=2048
    )
    beat = Beat(counter=3, at=at("03:00:00"), queries=(query,))
    (cells,) = page(running, beat=beat, alive=True).queries.rows
    assert cells == ("totals", "batch 7", "–", "10.0", "9.5", "12", "3", "2.0 KiB")  # noqa: RUF001 - a dash


def test_page_of_one_run_leaves_out_the_others() -> None:
    recorded = Recorded(scope="")
    for run, hour in (("one", "22"), ("two", "23")):
        recorded.started(f"{hour}:00:20", run=run)
        recorded.stage("clean", f"{hour}:10:00", f"{hour}:10:03", work_s=500, kib=30)
        recorded.ended(f"{hour}:20:00")
    both, one = page(recorded), page(recorded, "one")
    assert (len(both.attempts), len(one.attempts)) == (2, 1)
    assert [(row.run, row.attempt) for row in both.checkpoints] == [("two", 2), ("one", 1)]
    assert [row.run for row in one.checkpoints] == ["one"]


def facts(shown: JobPage) -> dict[str, str]:
    return {fact.label: fact.text for fact in shown.head.facts}


def test_head_of_a_run_has_no_fact_of_another_run() -> None:
    recorded = shared_by_two_runs()
    beat = Beat(
        counter=3,
        at=at("23:11:00"),
        activity="stage 'weather'",
        protected_since=at("23:10:03"),
        queries=(QueryProgress(uid="totals", batch=7),),
    )
    one, two = (page(recorded, run, beat, alive=True) for run in ("one", "two"))
    assert (one.head.state.text, two.head.state.text) == ("finished", "running")
    assert facts(one).items() >= {
        ("Task", "flights_etl.delays, try 1"),
        ("Last checkpoint", "chk-1"),
        ("Next attempt starts from", "chk-2"),
    }
    assert facts(one).keys().isdisjoint({"Last heartbeat", "A crash loses all work since"})
    assert (len(one.queries.rows), len(two.queries.rows)) == (0, 1)
    assert facts(two).items() >= {
        ("Last checkpoint", "chk-2"),
        ("Last heartbeat", "stage 'weather', query 'totals', batch 7"),
    }
    recorded.aborted(recorded.triggered("stage 'weather'", "23:12:00"), "23:22:00", "expired")
    assert "Problems" not in facts(page(recorded, "one"))
    assert "Problems" in facts(page(recorded, "two"))


def test_savepoints_of_a_run_are_its_own() -> None:
    recorded = shared_by_two_runs()
    recorded.suspended("23:30:00")
    assert [facts(page(recorded, run))["Savepoints"] for run in ("one", "two", "")] == ["0", "1", "1"]


def test_state_of_a_run_that_is_not_listed_is_unknown() -> None:
    shown = page(shared_by_two_runs(), "typo")
    assert (shown.head.state.text, "Task" in facts(shown)) == ("unknown", False)


def test_next_run_of_a_shared_history_may_start_after_one_has_finished() -> None:
    shared, alone = Recorded(scope=""), Recorded()
    for recorded in (shared, alone):
        recorded.started("22:00:20", run=RUN)
        recorded.ended("22:20:00")
    start = "Next attempt starts from"
    assert facts(page(shared))[start] == "nothing: no checkpoint is complete"
    assert facts(page(alone))[start] == f"{NONE} (the run has finished)"


def test_next_start_from_nothing_does_not_deny_the_checkpoints_that_are_there() -> None:
    recorded = shared_by_two_runs()
    restored = replace(recorded.state, branch=Branch(number=1))  # as `restore --from none` leaves it
    found = replace(reading(recorded), found=FoundHistory(recorded.keys, restored))
    shown = job_page(HistoryReference("checkpoint_default", recorded.keys.prefix), found, NOW)
    assert facts(shown)["Next attempt starts from"] == "nothing"


def test_commands_name_the_job_the_run_and_the_connection(finished: Recorded) -> None:
    reference = HistoryReference("in_s3", finished.keys.prefix)
    shown = job_page(reference, reading(finished), NOW)
    commands = [*shown.commands, *shown.checkpoints[0].commands]
    assert all(command.text.startswith("airflow checkpoints ") for command in commands)
    assert all(" --conn-id in_s3 " in command.text for command in commands)
    dangerous = [command.text for command in commands if command.changes]
    assert dangerous
    assert all("--dry-run" in text for text in dangerous)  # nothing runs here: trigger and savepoint are not offered


def test_configuration_is_that_of_the_newest_attempt() -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    policy = KeepLatest(5) | KeepWithin(days=7) & KeepAll()
    recorded.attached("22:00:38", **CheckpointConfig(timeout="90 s", tolerable_failures=3, retention=policy).to_json())
    assert page(recorded).configuration.rows == [
        ("timeout", "1 min 30 s"),
        ("retention", "(KeepLatest(5) | (KeepWithin(7 d) & KeepAll()))"),
        ("max_concurrent", "1"),
        ("tolerable_failures", "3"),
        ("interval", "10 min, not in force (no query runs)"),
        ("min_pause", "0.0 s, not in force (no query runs)"),
        ("mode", "exactly_once, not in force (no query runs)"),
        ("aligned_timeout", f"{NONE}, not in force (no query runs)"),
    ]


def test_pace_is_in_force_while_a_query_runs(running: Recorded) -> None:
    beat = Beat(counter=3, at=at("03:00:00"), queries=(QueryProgress(uid="totals", batch=7),))
    options = page(running, beat=beat, alive=True).configuration.rows
    assert ("interval", "10 min") in options
    assert ("min_pause", "0.0 s") in options
    running.ended("03:01:00")
    options = page(running, beat=beat, alive=True).configuration.rows
    assert ("interval", "10 min, not in force (no query runs)") in options


def test_statistics_are_those_of_the_history(finished: Recorded) -> None:
    """The durations begin at the trigger, as in Flink: without the time for which the job stood still."""
    shown = page(finished).statistics
    assert dict(zip(shown.counts.header, shown.counts.rows[0], strict=True)) == {
        "restored": "1", "total": "6", "in_progress": "0", "completed": "5", "failed": "1",
    }  # fmt: skip
    assert [dict(zip(shown.spread.header, row, strict=True)) for row in shown.spread.rows] == [
        {"completed": "duration", "min": "1.0 s", "avg": "5.0 s", "p50": "7.0 s", "p90": "8.0 s", "p99": "8.0 s", "max": "8.0 s"},
        {"completed": "new bytes", "min": "0 B", "avg": "12.6 KiB", "p50": "14.1 KiB", "p90": "29.1 KiB", "p99": "29.1 KiB", "max": "29.1 KiB"},
        {"completed": "size", "min": "18.0 KiB", "avg": "50.5 KiB", "p50": "61.2 KiB", "p90": "63.1 KiB", "p99": "63.1 KiB", "max": "63.1 KiB"},
    ]  # fmt: skip
    assert shown.causes == ["expired: 1"]


# -- problems ----------------------------------------------------------------------------------------------------------


def problems(recorded: Recorded, beat: Beat | None = None, alive: bool | None = True) -> Sequence[str]:
    return job_row("c", reading(recorded, beat, alive), NOW).problems


def test_job_without_a_problem_has_none(running: Recorded) -> None:
    assert problems(running) == []


def test_failures_in_a_row_are_a_problem_until_a_checkpoint_completes(running: Recorded) -> None:
    running.aborted(4, "02:55:00", "expired")
    running.aborted(running.triggered("stage 'delays'", "02:55:10"), "02:59:00", "declined")
    assert problems(running) == ["not protected: 2 checkpoints failed in a row, at last chk-5: declined"]
    running.ended("02:59:30", "failed", 1)
    assert problems(running) == ["2 checkpoints failed in a row, at last chk-5: declined"]
    second_attempt(running)
    assert problems(running) == []


def test_failures_of_an_attempt_before_are_no_problem_of_the_running_one(running: Recorded) -> None:
    running.aborted(4, "02:55:00", "expired")
    running.ended("02:59:30", "failed", 1)
    running.launched("03:00:00", try_number=2)
    assert problems(running) == []
    running.attached("03:00:10")
    assert problems(running) == []
    running.aborted(running.triggered("stage 'delays'", "03:10:00"), "03:20:00", "declined")
    assert problems(running) == ["not protected: 1 checkpoint failed in a row, at last chk-5: declined"]


def test_failures_of_a_finished_run_are_no_problem(running: Recorded) -> None:
    running.aborted(4, "02:55:00", "expired")
    running.ended("02:59:30")
    assert problems(running) == []


def test_silent_driver_is_a_problem(running: Recorded) -> None:
    assert problems(running, alive=False) == ["its driver shows no sign of life"]


def test_driver_that_nobody_follows_is_a_problem(running: Recorded) -> None:
    shown = replace(reading(running, alive=True), not_followed="its task is deferred  [CKP115]")
    assert job_row("c", shown, NOW).problems == ["its task is deferred  [CKP115]"]


def test_refused_start_is_a_problem() -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    refused = Beat(launch=1, refusal=RefusedStart(code="CKP602", text="write another name\nor none"))
    assert problems(recorded, refused, alive=False) == ["its driver was refused: write another name or none  [CKP602]"]


def test_files_are_those_of_the_metadata(finished: Recorded) -> None:
    checkpoint = finished.state.checkpoint(6)
    assert checkpoint
    seal = finished.coordinator.read_seal(checkpoint)
    row = page(finished).checkpoints[0]
    files = files_page(row, seal)
    assert files.total == "8 files, 63.1 KiB"
    assert {file.state for file in files.files} == {"clean", "delays", "planes", "weather"}


def test_older_candidates_are_as_many_as_in_the_story(running: Recorded) -> None:
    running.aborted(4, "02:55:00", "expired")
    for hour in range(6):
        running.stage("delays", f"0{hour + 3}:00:00", f"0{hour + 3}:00:02", work_s=5, kib=1)
    running.ended("09:10:00", "failed", 1)
    second = Recorded(running.store)
    second.coordinator.journal.catch_up()
    second.started("09:20:00", try_number=2)
    candidates = page(second).attempts[0].candidates
    older = [candidate.name for candidate in candidates if candidate.verdict == "older"]
    assert (len(older), older[-1]) == (4, "and 5 older")


def test_key_that_several_runs_share_is_called_a_key() -> None:
    recorded = Recorded(scope=DAY)
    recorded.started("22:00:20", run="one")
    assert (page(recorded).head.run, page(recorded).head.keyed, page(recorded, "one").head.keyed) == (DAY, True, False)
    assert not page(Recorded()).head.keyed


def test_suspension_has_its_time_apart() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.suspended("22:30:00")
    (fact,) = (fact for fact in page(recorded).head.facts if fact.label == "Suspended by")
    assert fact.at == at("22:30:00")
    assert not fact.text.startswith("2026")
    assert recorded.state.suspended == f"{fact.at} ({fact.text})"


# -- links and values --------------------------------------------------------------------------------------------------


def links(shown: JobPage, label: str) -> dict[str, str]:
    (fact,) = (fact for fact in shown.head.facts if fact.label == label)
    return {link.text: link.address for link in fact.links}


def test_page_leads_to_the_task_its_log_and_its_dag_run() -> None:
    recorded = Recorded(job="etl.group.load", scope="manual__2026-11-20T00:00:00+00:00")
    recorded.started("22:00:20", try_number=3)
    shown = page(recorded)
    dag_run = "../dags/etl.group/runs/manual__2026-11-20T00%3A00%3A00%2B00%3A00"
    found = {"task and log of try 3": f"{dag_run}/tasks/load?try_number=3", "DAG run": dag_run}
    assert links(shown, "Task") == found
    assert {link.text: link.address for link in shown.attempts[0].links} == found


def test_script_without_airflow_has_no_links() -> None:
    recorded = Recorded(job="alone", scope="")
    recorded.started("22:00:20", run="alone-1")
    assert links(page(recorded), "Task") == {}


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("http://driver:4040", {"Spark's pages": "http://driver:4040"}),
        ("javascript:alert(1)", {}),
        ("driver:4040", {}),
        ("", {}),
    ],
)
def test_page_leads_to_spark_if_its_address_is_one(running: Recorded, address: str, found: dict[str, str]) -> None:
    beat = Beat(at=NOW, activity="stage 'delays'", fraction=0.33, spark_application="app-1", spark_ui=address)
    shown = page(running, beat=beat, alive=True)
    assert (facts(shown)["Last heartbeat"], facts(shown)["Spark application"]) == ("stage 'delays' 33 %", "app-1")
    assert links(shown, "Spark application") == found
    running.ended("02:59:30", "failed", 1)
    assert "Spark application" not in facts(page(running, beat=beat))


def test_values_are_shown_with_their_checkpoint() -> None:
    recorded = Recorded(job="orders", scope="")
    recorded.started("19:00:00", run="one")
    recorded.value("high_water", "2026-11-20")
    recorded.stage("clean", "19:10:00", "19:10:01", work_s=540, kib=4)
    assert with_values(recorded.state, "") == [1]
    reference = HistoryReference("checkpoint_default", recorded.keys.prefix)
    shown = job_page(reference, reading(recorded), NOW, {1: {"high_water": "2026-\x1b11-20"}})
    assert [(state.uid, state.value) for state in shown.checkpoints[0].states] == [
        ("clean", ""),
        ("high_water", r'"2026-\u001b11-20"'),
    ]
    assert not shown.compares, "a chart of one checkpoint says nothing"


def test_suspended_job_is_a_problem() -> None:
    recorded = shared_by_two_runs()
    recorded.suspended("23:30:00")
    assert problems(recorded) == ["suspended: nothing starts it before a restore"]


def test_command_says_when_it_changes_something(running: Recorded) -> None:
    effects = {command.text.split()[2]: command.effect for command in page(running).commands}
    assert (effects["show"], effects["savepoint"], effects["stop"]) == (
        "",
        "changes something",
        "changes something without --dry-run",
    )
