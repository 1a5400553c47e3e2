"""``checkpoints story``: why there was a new attempt, from the journal alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_checkpoint_provider.storage import LocalStore
from tests.support.recorded import RUN, Recorded
from tests.unit import text as texts
from tests.unit.cli.conftest import FLIGHTS, ORDERS, Command

TEXTS = Path(texts.__file__).parent


def golden(name: str) -> list[str]:
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def test_story_of_a_run_is_that_of_its_newest_attempt(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("story", FLIGHTS, RUN)
    assert (done.code, done.err) == (0, "")
    assert done.lines == golden("retold_deleted")


def test_story_of_an_attempt_by_its_number(lake: LocalStore, checkpoints: Command) -> None:
    assert checkpoints("story", FLIGHTS, RUN, "--attempt", "1").lines == golden("retold_first")


def test_story_of_a_job_is_that_of_its_newest_run(lake: LocalStore, checkpoints: Command) -> None:
    lines = checkpoints("story", FLIGHTS).lines
    assert "run scheduled__2026-11-21: first attempt of this run" in lines[0]
    assert lines[-1] == "  ended       failed 2026-11-21 10:30 (exit code 137: SIGKILL)"


def test_story_of_a_run_in_a_shared_history(lake: LocalStore, checkpoints: Command) -> None:
    assert "STARTS FROM NOTHING" in checkpoints("story", ORDERS, "scheduled__2026-11-19").lines[0]
    lines = checkpoints("story", ORDERS).lines
    assert "run scheduled__2026-11-20: try 1, attempt 2" in lines[0]
    assert "  continues   with high_water of chk-1; stages belong to their run and are computed" in lines


def test_story_of_a_launch_without_an_attempt(running: Recorded, checkpoints: Command) -> None:
    running.ended("02:51:07", "failed", 137, "task")
    running.launched("03:02:10", try_number=2)
    assert checkpoints("story", FLIGHTS).lines == golden("retold_launch")
    story = json.loads(checkpoints("story", FLIGHTS, "-o", "json").out)
    assert (story["attempt"], story["outcome"], story["restore_point"], story["cause"]) == (None, None, "chk-3", None)
    running.launch_ended("03:02:12", cause="driver_heap")
    assert json.loads(checkpoints("story", FLIGHTS, "-o", "json").out)["cause"] == "driver_heap"


def test_story_as_json(lake: LocalStore, checkpoints: Command) -> None:
    story = json.loads(checkpoints("story", FLIGHTS, RUN, "-o", "json").out)
    assert (story["job"], story["run"], story["try"], story["attempt"]) == (FLIGHTS, RUN, 2, 2)
    assert (story["restore"], story["restore_point"], story["outcome"], story["exit_code"]) == (
        "latest",
        "chk-3",
        "finished",
        0,
    )
    assert [(one["id"], one["verdict"]) for one in story["candidates"]] == [
        (4, "rejected"), (3, "chosen"), (2, "older"), (1, "older"),
    ]  # fmt: skip
    assert story["stored"][0] == story["reused"][0] == {"uid": "clean", "work_s": 4320}
    assert (story["completed"], story["aborted"]) == ([5, 6], [])
    first = json.loads(checkpoints("story", FLIGHTS, RUN, "--attempt", "1", "-o", "json").out)
    assert first["aborted"] == [{"id": 4, "reason": "attempt replaced", "phase": "acknowledge", "details": ""}]


def test_story_as_columns(lake: LocalStore, checkpoints: Command) -> None:
    rows = [line.split("\t") for line in checkpoints("story", FLIGHTS, RUN, "-o", "plain").lines]
    assert rows[0][:3] == ["chk-4", "rejected", "never sealed (attempt replaced)"]
    assert rows[1][:2] == ["chk-3", "chosen"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "there is no job 'nobody' under"),
        ([FLIGHTS, "another"], "job 'flights_etl.delays' has no run 'another' under"),
        ([FLIGHTS, RUN, "--attempt", "9"], f"flights_etl.delays, run {RUN}: no attempt 9 is listed"),
        (
            [ORDERS, "scheduled__2026-11-19", "--attempt", "2"],
            "etl.orders, run scheduled__2026-11-19: no attempt 2 is listed",
        ),
    ],
)
def test_story_of_anything_absent_exits_with_4(
    lake: LocalStore, checkpoints: Command, arguments: list[str], message: str
) -> None:
    done = checkpoints("story", *arguments)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith(message)
    assert done.err.endswith("[CKP624]\n")


def test_story_of_a_running_attempt_as_json_has_no_end(running: Recorded, checkpoints: Command) -> None:
    story = json.loads(checkpoints("story", FLIGHTS, "-o", "json").out)
    assert (story["attempt"], story["outcome"], story["exit_code"], story["ended_at"]) == (1, None, None, None)
