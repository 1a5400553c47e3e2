"""``DisposeSavepointOperator`` deletes a savepoint once, refuses one that is needed, and deletes nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider.coordinator.savepoint import publish_due, target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import Held, SavepointDisposed
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import DisposeSavepointOperator, RestoreOperator
from airflow_checkpoint_provider.protocol.events import Request
from tests.support.acting import Job
from tests.support.tasks import OTHER, kill_in, run, trigger


def dispose(pointer: Any, **options: Any) -> DisposeSavepointOperator:
    with DAG(OTHER, schedule=None):
        return DisposeSavepointOperator(task_id="dispose", pointer=pointer, **options)


@pytest.fixture
def pointer(job: Job) -> str:
    """Return the target of a savepoint that its history no longer needs."""
    job.complete(
        job.coordinator.trigger(Request(token="one", kind="savepoint", origin="user", folder=f"{job.store.uri}/theirs"))
    )
    publish_due(job.coordinator)
    job.complete(job.coordinator.trigger(Request(token="barrier")))
    return str(job.checkpoint(1).target)


@pytest.mark.parametrize("form", ["pointer", "reference"])
def test_disposed_savepoint_leaves_only_its_markers(job: Job, pointer: str, form: str) -> None:
    given = pointer if form == "pointer" else {"job": "orders", "scope": "", "id": 1, "pointer": pointer}
    assert run(dispose(given)) is None
    assert job.checkpoint(1).status == "forgotten"
    where = target_of(job.checkpoint(1))
    names = [listed.key.rpartition("/")[2] for listed in job.store.list(f"theirs/{where.name}")]
    assert sorted(names) == ["_claimed", "_metadata"]
    with pytest.raises(SavepointDisposed, match=f"by {OTHER}.dispose"):
        open_savepoint(where, job.store)


def test_second_disposal_changes_nothing(job: Job, pointer: str) -> None:
    run(dispose(pointer))
    before = job.state
    run(dispose(pointer), try_number=2)
    assert job.state == before


def test_disposal_is_refused_while_the_history_may_start_from_the_savepoint(job: Job) -> None:
    job.complete(
        job.coordinator.trigger(Request(token="one", kind="savepoint", origin="user", folder=f"{job.store.uri}/theirs"))
    )
    publish_due(job.coordinator)
    with pytest.raises(Held, match="may still start from savepoint chk-1"):
        run(dispose(job.checkpoint(1).target))
    assert open_savepoint(target_of(job.checkpoint(1)), job.store).verify() == 2


@pytest.mark.parametrize("orphan", [False, True])
def test_disposal_is_refused_if_another_job_has_claimed_the_savepoint(job: Job, pointer: str, orphan: bool) -> None:
    """The savepoint exists, although its own history no longer lists it."""
    other = Job(job.store, "payments")
    other.start()
    with DAG(OTHER, schedule=None):
        run(RestoreOperator(task_id="claims", job="payments", restore=pointer, claim_mode="claim"))
    with pytest.raises(AirflowFailException, match="was claimed for another history"):
        run(dispose(pointer, orphan=orphan))


@pytest.fixture(params=["another connection", "no connection"])
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return options that lead a task to a root without the history."""
    hook = "airflow_checkpoint_provider.hooks.checkpoint_storage"
    if request.param == "no connection":
        monkeypatch.setattr(f"{hook}.find_connection", lambda _: None)  # here is no Airflow to say so
        monkeypatch.setattr(f"{hook}.get_airflow_home", lambda: str(tmp_path / "airflow"))
        return {}
    connection = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "elsewhere")}}
    monkeypatch.setenv("AIRFLOW_CONN_ANOTHER", json.dumps(connection))
    return {"checkpoint_conn_id": "another"}


def test_disposal_is_refused_if_the_history_is_not_found(job: Job, elsewhere: dict[str, str]) -> None:
    """The history, if it were found, would hold the savepoint."""
    job.complete(
        job.coordinator.trigger(Request(token="one", kind="savepoint", origin="user", folder=f"{job.store.uri}/theirs"))
    )
    publish_due(job.coordinator)
    with pytest.raises(AirflowFailException, match=r"its history was not found at file://.*: give this .* orphan=True"):
        run(dispose(job.checkpoint(1).target, **elsewhere))
    assert open_savepoint(target_of(job.checkpoint(1)), job.store).verify() == 2


def test_savepoint_without_its_history_is_disposed_of_with_orphan(
    job: Job, pointer: str, elsewhere: dict[str, str]
) -> None:
    run(dispose(pointer, orphan=True, **elsewhere))
    with pytest.raises(SavepointDisposed):
        open_savepoint(target_of(job.checkpoint(1)), job.store)
    run(dispose(pointer, **elsewhere), try_number=2)


def test_orphan_does_not_overrule_a_history_that_is_found(job: Job) -> None:
    job.complete(
        job.coordinator.trigger(Request(token="one", kind="savepoint", origin="user", folder=f"{job.store.uri}/theirs"))
    )
    publish_due(job.coordinator)
    with pytest.raises(Held):
        run(dispose(job.checkpoint(1).target, orphan=True))


def test_disposal_of_a_checkpoint_is_refused(job: Job) -> None:
    asked = run(trigger())
    job.complete(1)
    with pytest.raises(AirflowFailException, match="is not a savepoint: its history deletes it"):
        run(dispose(asked))
    assert job.checkpoint(1).status == "retained"


def test_killed_task_disposes_of_nothing(job: Job, pointer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disposes = dispose(pointer)
    kill_in(monkeypatch, disposes, CheckpointStorageHook, "get_store_beside")
    with pytest.raises(AirflowException, match="was killed"):
        run(disposes)
    assert open_savepoint(target_of(job.checkpoint(1)), job.store).verify() == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, r"pointer=None is not a savepoint: write pointer=savepoint\.output, .* or its directory"),
        (7, "pointer=7 is not a savepoint"),
        ({}, r"pointer=\{\} is not a savepoint"),
        ("yesterday", "is not a pointer"),
    ],
)
def test_value_that_is_no_savepoint_is_refused(job: Job, wrong: object, message: str) -> None:
    with pytest.raises(AirflowFailException, match=message):
        run(dispose(wrong))


def test_disposal_of_an_unpublished_savepoint_is_refused(job: Job) -> None:
    with pytest.raises(AirflowFailException, match="there is no savepoint"):
        run(dispose(f"{job.store.uri}/theirs/savepoint-orders-9-abc"))


def test_only_pointer_is_a_template() -> None:
    assert tuple(dispose("x").template_fields) == ("pointer",)


def test_savepoint_is_described_by_its_pointer(pointer: str) -> None:
    described = CheckpointStorageHook().describe(pointer)
    assert (described["job"], described["id"], described["sealed"], list(described["states"])) == (
        "orders",
        1,
        True,
        ["clean", "rows"],
    )
