"""On a real Airflow: what is refused, or waits, before anything is submitted."""

from __future__ import annotations

import secrets

import pytest

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.protocol.events import BranchOpened, Event, HistoryOpened, Resumed, Token
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.storage import Put
from tests.e2e.conftest import REFUSED
from tests.e2e.lab import PATIENCE, RESULT, TASK, Lab
from tests.support.histories import stopped

pytestmark = pytest.mark.timeout(1800)
NAMED = {"scope": "max_active_runs=1"}  # where another parameter must be named


@pytest.mark.slow  # test_suspended_job.py waits for such a job
def test_suspended_job_waits_until_it_is_resumed(lab: Lab) -> None:
    history = History(f"suspends.{TASK}")
    incarnation = secrets.token_hex(16)
    opened = HistoryOpened(incarnation=incarnation, job=history.job, scope="", item=None, by="test")
    _put(lab, history, incarnation, 0, opened, *stopped(1, 1, history.job))
    run = lab.start("suspends", history=history)
    run.client.wait_for_task(run.dag, run.id, TASK, {"up_for_reschedule"}, 1, PATIENCE)
    assert run.state.launches == ()
    assert "[CKP130]" in run.log(1)
    token = Token(dag="", run="by hand", task="restore")
    anew = BranchOpened(branch=1, application="", base=None, token=token, by="somebody", reason="test")
    _put(lab, history, incarnation, 1, anew, Resumed(by="somebody", reason="test"))
    run.ended("success", 1)
    assert run.results == [{"attempt": 1, **RESULT}]


def _put(lab: Lab, history: History, incarnation: str, number: int, *events: Event) -> None:
    journal = lab.journal(history)
    entry = Entry(incarnation, number, secrets.token_hex(16), utc_now(), journal.by.to_json(), events)
    assert journal.store.create(journal.keys.entry(number), entry.to_bytes()) is Put.STORED


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_option_is_an_import_error(lab: Lab, name: str) -> None:
    said = lab.stack.client.import_errors()[f"refused_{name}.py"]
    assert NAMED.get(name, f"{name}=") in said.splitlines()[-1]


@pytest.mark.slow  # test_checkpoint_storage.py of the hooks refuses it
def test_cluster_without_checkpoint_location_is_refused(lab: Lab) -> None:
    run = lab.start("homeless")
    run.ended("failed", 1)
    log = run.log(1)
    assert "no connection 'missing'" in log


def test_airflow_lists_the_provider(lab: Lab) -> None:
    listed = lab.stack.client.call("GET", "/api/v2/providers?limit=200")["providers"]
    assert "airflow-checkpoint-provider" in {one["package_name"] for one in listed}
    said = "".join(log.read_text() for log in lab.stack.home.glob("*.log"))
    assert "[airflow.providers_manager]" not in said  # it warns of what it cannot import
