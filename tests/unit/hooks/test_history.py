"""The reader of a history: what it reads again, and when it begins anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import CheckpointError, OtherIncarnation, StoreUnavailable
from airflow_checkpoint_provider.hooks import checkpoint_storage, history
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import ConnectionUnreadable, NoConnection
from airflow_checkpoint_provider.hooks.history import HistoryReader
from airflow_checkpoint_provider.protocol.keys import SEGMENT, History
from airflow_checkpoint_provider.storage import Store, open_store
from tests.support.acting import Job
from tests.support.faults import Fault, FaultyStore, always, served


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each poll find out whether something has changed."""
    monkeypatch.setattr(history, "SELDOM", 0.0)


def reader_of(job: Job) -> HistoryReader:
    reader = CheckpointStorageHook().get_history(job.job, "triggerer")
    assert reader.poll() == job.state
    return reader


def launched_anew(job: Job, checkpoints: int = 0) -> Job:
    """Delete the history by hand, and launch the job again: each launch draws its own name of a new history."""
    shutil.rmtree(Path(job.store.uri.removeprefix("file://"), "jobs", job.job))
    new = Job(job.store, job.job)
    new.incarnation = "another"
    new.start()
    for _ in range(checkpoints):
        new.take()
    return new


@pytest.mark.usefixtures("often")
def test_connection_that_leads_elsewhere_is_followed(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(job)
    other = Job(open_store(str(tmp_path / "other")))
    other.start()
    number = other.take()
    extra = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "other")}}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(extra))
    assert reader.poll() == other.state
    assert reader.reference(other.checkpoint(number))["pointer"].startswith(f"file://{tmp_path}/other/")


@pytest.mark.usefixtures("often")
def test_connection_that_is_gone_is_an_error_and_read_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": job.store.uri}})
    monkeypatch.setenv("AIRFLOW_CONN_TEAM_A", extra)
    reader = CheckpointStorageHook("team_a").get_history("orders", "triggerer")
    reader.poll()
    with monkeypatch.context() as gone:
        gone.setattr(checkpoint_storage, "find_connection", lambda _: None)
        for _ in range(2):
            with pytest.raises(NoConnection):
                reader.poll()
    assert reader.poll() == job.state


@pytest.mark.usefixtures("often")
def test_airflow_that_does_not_answer_stops_no_poll(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(job)

    def silent(*_: object) -> Store:
        raise ConnectionUnreadable("no answer")

    monkeypatch.setattr(CheckpointStorageHook, "get_store_of", silent)
    job.take()
    assert reader.poll() == job.state


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("checkpoints", [0, 3, 35], ids=["shorter", "as long", "longer than a segment"])
def test_history_that_was_begun_anew_is_read_anew(job: Job, checkpoints: int) -> None:
    for _ in range(3):
        job.take()
    reader = reader_of(job)
    new = launched_anew(job, checkpoints)
    for _ in range(2):
        try:
            state = reader.poll()
        except OtherIncarnation:
            continue
    assert state == new.state
    assert checkpoints < 10 or new.state.n > SEGMENT


@pytest.mark.usefixtures("often")
def test_history_that_was_deleted_is_empty(job: Job) -> None:
    reader = reader_of(job)
    shutil.rmtree(Path(job.store.uri.removeprefix("file://"), "jobs", job.job))
    assert reader.poll().n < 0


@pytest.mark.usefixtures("often")
def test_progress_of_a_history_that_was_begun_anew_is_counted(job: Job) -> None:
    progress = CheckpointStorageHook().get_progress(History("orders"), None, "sensor")
    for _ in range(3):
        job.take()
    assert len(progress.completed()) == 3
    launched_anew(job)
    assert progress.completed() == ()


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.DENIED, Fault.MISCONFIGURED])
def test_any_error_but_silence_begins_anew(job: Job, faulty: FaultyStore, fault: Fault) -> None:
    reader = reader_of(job)
    before = reader.coordinator
    faulty.plan = always(fault, "read")
    with pytest.raises(CheckpointError) as error:
        reader.poll()
    assert (reader.coordinator is before) == isinstance(error.value, StoreUnavailable)
    faulty.plan = served
    assert reader.poll() == job.state


def test_most_polls_ask_nobody_else(job: Job, faulty: FaultyStore) -> None:
    reader = reader_of(job)
    before = faulty.requests.total()
    for _ in range(20):
        reader.poll()
    assert faulty.requests.total() - before == 20
