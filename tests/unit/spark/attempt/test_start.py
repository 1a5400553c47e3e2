"""A driver that begins beside another driver of its job: its heartbeat tells whether it lives. Needs no Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.attempt.settings import Settings
from airflow_checkpoint_provider.spark.attempt.start import Program, begin
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.beats import CLOCKS_OFF, beating, put_beat


@pytest.fixture(autouse=True)
def _beats_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver elsewhere is watched for 0.3 s."""
    monkeypatch.setenv(VARIABLE, "0.1")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A script without Airflow has begun it."""
    job = Job(LocalStore(tmp_path))
    begin(settings(job), Program(application="a", parts={}, spark="4"))
    return job


def settings(job: Job) -> Settings:
    return Settings(root=job.store.uri, job="orders", prefix=job.keys.prefix, config=CheckpointConfig())


@CLOCKS_OFF
def test_script_is_refused_beside_a_living_driver_whatever_its_clock_says(
    job: Job, off: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "20")  # the wait of up to 60 s ends as soon as the heartbeat moves
    before = job.state
    with beating(job.store, job.keys.attempt_beat(1), off), pytest.raises(SystemExit) as ended:
        begin(settings(job), Program(application="a", parts={}, spark="4"))
    assert ended.value.code == ExitCode.REFUSED
    assert job.state == before


def test_script_replaces_an_attempt_of_its_own_process_whose_end_was_not_written(job: Job) -> None:
    """A cell of a notebook that is run again after the store did not answer."""
    assert job.state.attempts[-1].outcome is None
    assert begin(settings(job), Program(application="a", parts={}, spark="4")).epoch == 2


def test_first_start_names_the_root_in_which_it_found_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(settings(Job(LocalStore(tmp_path))), Program(application="a", parts={}, spark="4"))
    assert f"has no history under {LocalStore(tmp_path).uri}." in capsys.readouterr().out


@CLOCKS_OFF
def test_script_replaces_a_dead_driver_whatever_its_clock_says(job: Job, off: timedelta) -> None:
    put_beat(job.store, job.keys.attempt_beat(1), off=off)
    assert begin(settings(job), Program(application="a", parts={}, spark="4")).epoch == 2
