"""What the pages say of recorded histories."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress
from airflow_checkpoint_provider.operators._link import Place
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.ui import charts
from airflow_checkpoint_provider.ui.polling import Reading
from airflow_checkpoint_provider.ui.views.checkpoints import Cost, files_page
from airflow_checkpoint_provider.ui.views.job import JobPage, job_page
from airflow_checkpoint_provider.ui.views.jobs import job_row
from tests.support.recorded import RUN, Recorded, at, second_attempt, three_stages

NOW = at("04:00:00")


def reading(recorded: Recorded, beat: Beat | None = None, alive: bool | None = None) -> Reading:
    missing = {checkpoint.id: checkpoint.plan for checkpoint in recorded.state.pending}
    return Reading(FoundHistory(recorded.keys, recorded.state), recorded.store.uri, beat, alive, missing)


def page(recorded: Recorded, run: str = "", beat: Beat | None = None, alive: bool | None = None) -> JobPage:
    return job_page(Place("checkpoint_default", recorded.keys.prefix, run), reading(recorded, beat, alive), NOW)


@pytest.fixture
def running() -> Recorded:
    recorded = Recorded()
    three_stages(recorded)
    return recorded


@pytest.fixture
def finished(running: Recorded) -> Recorded:
    running.aborted(4, "02:55:00", "expired", "slow disk")
    running.ended("02:56:00", "failed", 137, "task")
    second_attempt(running)
    return running


def test_pending_checkpoint_says_whom_it_waits_for(running: Recorded) -> None:
    (row,) = page(running).pending
    assert (row.name, row.acknowledged, row.state.text) == ("chk-4", "0 of 1", "pending")
    assert row.waits_for == "the acknowledgement of the driver"


def test_page_is_live_while_the_job_runs(running: Recorded, finished: Recorded) -> None:
    assert not page(finished).live
    recorded = Recorded(job="a.b")
    recorded.started("22:00:20")
    assert page(recorded).live


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
        "chk-2": ("older", "deleted by now"),
        "chk-1": ("older", "deleted by now"),
    }


def test_row_splits_the_duration_and_names_the_states(finished: Recorded) -> None:
    row = next(row for row in page(finished).checkpoints if row.id == 5)
    assert row.cost == Cost("1.0 s", "0.2 s", "1.0 s", "0.0 s", "63.1 KiB", "1.9 KiB", "0 B")
    assert row.acknowledged == "1 of 1"
    assert [state.uid for state in row.states] == ["clean", "delays", "planes", "weather"]


def test_aborted_row_says_who_was_missing_and_what_to_do(finished: Recorded) -> None:
    row = next(row for row in page(finished).checkpoints if row.id == 4)
    assert row.state.tone == "bad"
    assert any("missing     the driver at stage 'delays': slow disk" in line for line in row.story)
    assert any(line.strip().startswith("to do") for line in row.story)


def test_silent_driver_is_said(running: Recorded) -> None:
    row = job_row("c", reading(running, alive=False), NOW)
    assert (row.state.text, row.state.tone) == ("running, no heartbeat", "bad")


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
    assert [row.run for row in one.checkpoints] == ["one"]


def test_commands_name_the_job_the_run_and_the_connection(finished: Recorded) -> None:
    place = Place("in_s3", finished.keys.prefix)
    shown = job_page(place, reading(finished), NOW)
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
    ]


def test_files_are_those_of_the_metadata(finished: Recorded) -> None:
    checkpoint = finished.state.checkpoint(6)
    assert checkpoint
    seal = finished.coordinator.read_seal(checkpoint)
    row = page(finished).checkpoints[0]
    files = files_page(row, seal)
    assert files.total == "8 files, 63.1 KiB"
    assert {file.state for file in files.files} == {"clean", "delays", "planes", "weather"}


@pytest.mark.parametrize("name", charts.DRAWINGS)
@pytest.mark.parametrize("theme", charts.INK)
def test_charts_are_images_without_scripts(finished: Recorded, name: str, theme: str) -> None:
    for recorded in (finished, Recorded(job="a.b")):
        image = charts.DRAWINGS[name](recorded.state, "", theme).decode()
        assert image.startswith("<?xml")
        assert "<script" not in image


def test_chart_names_each_checkpoint(finished: Recorded) -> None:
    drawn = charts.durations(finished.state, RUN, "light").decode()
    assert all(f"chk-{number}" in drawn for number in (1, 2, 3, 5, 6))
