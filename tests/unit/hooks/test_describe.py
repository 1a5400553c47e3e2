"""``CheckpointStorageHook.describe`` shows a checkpoint to an audit, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged, InvalidConfig, NotPending, SavepointDisposed
from airflow_checkpoint_provider.hooks.checkpoint_storage import (
    CheckpointStorageHook,
    _describe_state,
    _describe_states,
)
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import Seal
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acknowledgements import ROWS, stage
from tests.support.acting import Job
from tests.support.garbage import retire
from tests.support.saved import Saved
from tests.support.tasks import run, trigger
from tests.unit.protocol.golden_states import with_loops


@pytest.fixture
def asked(job: Job) -> dict[str, Any]:
    answer: dict[str, Any] = run(trigger(gated=True))
    return answer


def test_acknowledged_checkpoint_is_described_before_it_is_sealed(job: Job, asked: dict[str, Any]) -> None:
    job.acknowledge(1, rows=42)
    described = CheckpointStorageHook().describe(asked)
    assert described == CheckpointStorageHook().describe(asked["pointer"])
    assert json.loads(json.dumps(described)) == described
    assert described.items() >= asked.items()
    assert described["sealed"] is False
    assert list(described["states"]) == ["clean", "rows"]
    stage = described["states"]["clean"]
    assert (stage["kind"], stage["rows"], stage["bytes"], stage["value"]) == ("stage", 14, 2 * len(ROWS), None)
    assert stage["schema"] == {"type": "struct", "fields": []}
    assert [Path(uri.removeprefix("file://")).read_bytes() for uri in stage["files"]] == [ROWS, ROWS]
    value = {"kind": "value", "rows": 0, "bytes": 0, "files": [], "schema": None, "value": 42}
    assert described["states"]["rows"] == value


def test_sealed_checkpoint_has_the_description_of_the_acknowledged_one(job: Job, asked: dict[str, Any]) -> None:
    job.acknowledge(1)
    before = CheckpointStorageHook().describe(asked)
    job.coordinator.complete(1, finalize=True)
    assert CheckpointStorageHook().describe(asked) == {**before, "sealed": True}


def test_frame_is_described_by_its_newest_rows_and_a_loop_by_its_value() -> None:
    described = {state.uid: _describe_state(state, "file:///root") for state in with_loops().states}
    ranks, days = described["ranks"], described["days"]
    assert (ranks["kind"], ranks["rows"], ranks["bytes"], ranks["schema"]) == ("frame", 7, 3 * 41, {})
    assert (days["kind"], days["value"], days["files"]) == ("once", ["mon", ["tue", 1]], [])
    assert described["rank"]["value"] == {"turns": 2}


def test_unacknowledged_checkpoint_cannot_be_described(asked: dict[str, Any]) -> None:
    with pytest.raises(NotPending, match="not acknowledged yet"):
        CheckpointStorageHook().describe(asked)


def test_aborted_checkpoint_cannot_be_described(job: Job, asked: dict[str, Any]) -> None:
    job.abort(1)
    with pytest.raises(CheckpointNotFound, match=r"it was aborted \(expired\)"):
        CheckpointStorageHook().describe(asked)


def test_deleted_checkpoint_cannot_be_described(job: Job) -> None:
    for number in (1, 2, 3):
        job.coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0))
        job.complete(number)
    retire(job.coordinator, utc_now())
    with pytest.raises(CheckpointNotFound, match="was deleted"):
        CheckpointStorageHook().describe(f"{job.store.uri}/{job.keys.checkpoint(1)}")


def test_value_that_is_no_checkpoint_is_refused(job: Job) -> None:
    with pytest.raises(InvalidConfig):
        CheckpointStorageHook().describe({})


@pytest.mark.usefixtures("store")
def test_savepoint_is_described_at_its_target(tmp_path: Path) -> None:
    """The savepoint lies outside the connection's root, without a journal."""
    saved = Saved(LocalStore(tmp_path / "savepoints"))
    saved.publish()
    described = CheckpointStorageHook().describe({"pointer": str(saved.pointer)})
    assert described == CheckpointStorageHook().describe(f"{saved.pointer}/_metadata")
    about = {"job": "flights.delays", "scope": "", "id": 1, "pointer": str(saved.pointer), "sealed": True}
    assert described.items() >= about.items()
    files = described["states"]["s1"]["files"]
    assert [Path(uri.removeprefix("file://")).read_bytes() for uri in files] == [ROWS, ROWS]
    assert all(uri.startswith(f"{saved.pointer}/state/s1/") for uri in files)
    saved.dispose()
    with pytest.raises(SavepointDisposed, match="by ann"):
        CheckpointStorageHook().describe(str(saved.pointer))


def test_savepoint_named_by_its_id_is_described_at_its_target(job: Job) -> None:
    """Its files lie at the target, not below the history."""
    request = Request(token="savepoint", kind="savepoint", origin="task", folder=f"{job.store.uri}/savepoints")
    job.complete(job.coordinator.trigger(request))
    publish_due(job.coordinator)
    described = CheckpointStorageHook().describe(f"{job.store.uri}/{job.keys.checkpoint(1)}")
    assert described == CheckpointStorageHook().describe(job.checkpoint(1).target or "")
    assert [Path(uri.removeprefix("file://")).read_bytes() for uri in described["states"]["clean"]["files"]] == [
        ROWS,
        ROWS,
    ]


@pytest.mark.parametrize("schema", ["", "[", "[" * 100_000, "[" * 400 + "]" * 400, "9" * 5000, "\xff"])
def test_schema_that_spark_never_writes_is_damaged(schema: str) -> None:
    """The audit is a task: an error that is none of the package has no code, and says nothing of the state."""
    state = stage("clean", 1)
    assert state.stage
    seal = SimpleNamespace(states={"clean": replace(state, stage=replace(state.stage, schema=schema))})
    with pytest.raises(Damaged, match="the schema of state 'clean' below s3://lake/x is not what"):
        _describe_states(cast(Seal, seal), "s3://lake/x")
