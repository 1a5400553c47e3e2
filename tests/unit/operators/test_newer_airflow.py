"""Tasks that submit under an Airflow that is newer than the releases that were tried. Runs where Airflow is."""

from __future__ import annotations

import re
from pathlib import Path

import airflow
import pytest
from airflow.providers.apache import spark

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.operators._base import GENERATION_KEY
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.protocol.commands import Restore
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import open_store
from tests.support.recorded import Recorded, at, second_attempt
from tests.support.state_store import TaskStateStore
from tests.unit.operators.submissions import TaskInstance, execute
from tests.unit.operators.tries import BEATS, DEAD, Try


def releases(monkeypatch: pytest.MonkeyPatch, of_airflow: str, of_provider: str = "6.3.4") -> None:
    monkeypatch.setattr(airflow, "__version__", of_airflow)
    monkeypatch.setattr(spark, "__version__", of_provider)


@pytest.mark.parametrize(
    ("of_airflow", "of_provider", "said"),
    [
        ("3.3.9", "6.3.9", []),
        ("3.4.0", "6.3.4", ["Airflow 3.4.0 (the newest tried: 3.3)"]),
        ("3.3.2", "6.12.0", ["Spark provider 6.12.0 (the newest tried: 6.3)"]),
        ("3.10.1rc1", "6.4", ["Airflow 3.10.1rc1 (the newest tried: 3.3), Spark provider 6.4 (the newest tried: 6.3)"]),
    ],
)
def test_newer_releases_are_said_in_one_line(
    of_airflow: str,
    of_provider: str,
    said: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    releases(monkeypatch, of_airflow, of_provider)
    execute(folder)
    lines = re.findall(
        r"This package was not tried with (.*)\. The task continues  \[CKP117\]", capsys.readouterr().out
    )
    assert lines == said
    assert bool(said) == bool(_airflow.untried())


# -- a clear that discards what Airflow has stored for the task ----------------------------------------------------------


def journal(folder: Path) -> State:
    store = open_store(str(folder / "checkpoints"))
    return open_history(store, History("etl.job", "manual__1").prefix).journal.catch_up()


def cleared(folder: Path, store: TaskStateStore, on_clear: str = "auto", try_number: int = 2) -> None:
    """The next try after a clear of the first one: Airflow has raised ``max_tries``."""
    execute(folder, ti=TaskInstance(try_number=try_number, max_tries=3), store=store, retries=2, on_clear=on_clear)


@pytest.mark.parametrize("on_clear", ["auto", "restart", "continue"])
@pytest.mark.parametrize(("release", "keys"), [("3.3.2", "gone"), ("3.4.0", "gone"), ("3.4.0", "kept")])
def test_discarded_run_starts_over_and_others_continue(
    release: str, keys: str, on_clear: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(monkeypatch, release)
    store = TaskStateStore()
    execute(folder, store=store, retries=2)
    cleared(folder, store if keys == "kept" else TaskStateStore(), on_clear)
    starts_over = on_clear == "restart" or (on_clear == "auto" and release == "3.4.0" and keys == "gone")
    state = journal(folder)
    assert [launch.branch for launch in state.launches] == [0, int(starts_over)]


def test_try_after_a_try_that_died_before_its_plan_decides_alike(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    releases(monkeypatch, "3.4.0")
    execute(folder, retries=2)
    store = TaskStateStore()

    def dies(launch: DriverLaunch) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(DriverLaunch, "plan", dies)
        with pytest.raises(MemoryError):
            cleared(folder, store)
    assert store.get(GENERATION_KEY)["discarded"]
    assert journal(folder).branch.number == 0
    cleared(folder, store, try_number=3)
    assert journal(folder).branch.number == 1
    cleared(folder, store, try_number=4)
    assert journal(folder).branch.number == 1, "a retry continues what the clear began"


def test_first_line_names_the_work_and_how_to_keep_it(recorded: Recorded) -> None:
    recorded.ended("02:51:07", "failed", 137, "task")
    again = Try(recorded, 2, generation=1, on_clear="restart", discarded=True)
    assert again.launch.plan().restore_point is None
    assert again.lines[0] == (
        "GIVES UP chk-3 of flights_etl.delays, run scheduled__2026-11-20: 4 h 14 min of work (clean 1 h 12, weather 1 h 40, planes 1 h 22)."
        " The clear discarded what Airflow had stored for this task, so the run starts again from where it started. To keep this work, now or"
        " until its retention ends: `airflow checkpoints restore flights_etl.delays scheduled__2026-11-20 --from chk-3`. To keep it at the"
        ' next clear: tick "keep task state", or write on_clear="continue"  [CKP118]'
    )
    assert again.lines[1].startswith("RESTORE flights_etl.delays, run scheduled__2026-11-20: try 2")
    assert [checkpoint.id for checkpoint in again.launch.state.retained] == [2, 3]


def test_work_that_was_given_up_can_be_restored_by_name(recorded: Recorded) -> None:
    Try(recorded, 2, generation=1, on_clear="restart", discarded=True, beats=DEAD).launch.plan()
    recorded.clock = at("03:05:00")
    command = Restore(token=recorded.token("by hand"), base=Point(id=3), by="a person", reason="keep it")
    recorded.coordinator.journal.append(command)
    third = Try(recorded, 3, generation=1, on_clear="restart", discarded=True)
    assert str(third.launch.plan().restore_point) == "chk-3"
    assert "CKP118" not in "\n".join(third.lines)


def test_living_driver_is_fenced_by_a_clear_that_discards(recorded: Recorded) -> None:
    Heart(recorded.store, recorded.keys.attempt_beat(1), Beat(epoch=1), BEATS).pulse()
    again = Try(recorded, 2, generation=1, on_clear="restart", discarded=True)
    assert again.launch.plan().number == 2
    assert again.launch.state.over(1)
    assert any(line.startswith("  fenced") for line in again.lines)


def test_run_without_a_checkpoint_gives_up_nothing() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    again = Try(recorded, 2, generation=1, on_clear="restart", discarded=True, beats=DEAD)
    again.launch.plan()
    assert "CKP118" not in "\n".join(again.lines)


def test_finished_run_gives_up_nothing(recorded: Recorded) -> None:
    second_attempt(recorded)
    again = Try(recorded, 3, generation=1, on_clear="restart", discarded=True)
    again.launch.plan()
    assert "CKP118" not in "\n".join(again.lines)
