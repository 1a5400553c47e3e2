"""Log lines of savepoints, of stops, and of too many failures. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import launch_messages, messages
from tests.support.recorded import Recorded, at
from tests.unit.text.conftest import Golden


def asked(kind: str) -> Recorded:
    recorded = Recorded(job="orders", scope="")
    recorded.started("22:00:20")
    recorded.stage("clean", "22:10:00", "22:10:02", work_s=540, kib=4)
    recorded.clock = at("22:12:00")
    recorded.coordinator.trigger(
        Request(
            token="a task",
            kind=kind,
            folder="s3://lake/savepoints",
            timeout_s=600.0,
            origin="task",
            owner="upgrade.stop",
        )
    )
    return recorded


def test_lines_of_a_savepoint_that_is_copied(golden: Golden) -> None:
    (checkpoint,) = asked("savepoint").state.pending
    name = messages.savepoint(checkpoint).rpartition("-")[0]
    golden(
        "saving",
        [
            messages.copied(f"{name}-9f3c", 12 * 1024**3, 61 * 1024**3),
            messages.copying_from_elsewhere(
                Point(pointer="s3://lake/savepoints/savepoint-orders-41-9f3c"), 214, 61 * 1024**3
            ),
            messages.copying_from_elsewhere(Point(id=41), 214, 61 * 1024**3),
            messages.not_published("cannot write s3://lake/savepoints: 503"),
            messages.not_tolerated(3, 2, "chk-7 expired: nobody came"),
        ],
    )


def test_lines_of_a_stop(golden: Golden) -> None:
    recorded = asked("suspend_savepoint")
    (checkpoint,) = recorded.state.pending
    lines = [
        messages.stopped(recorded.state, checkpoint, "stage 'clean'"),
        messages.stopped(recorded.state, checkpoint, "end", "the store does not answer"),
        messages.goes_on(recorded.state, checkpoint),
        messages.not_known(checkpoint, "the store does not answer"),
    ]
    nonce = messages.savepoint(checkpoint).rpartition("-")[2]
    golden("stopping", [line.replace(nonce, "9f3c") for line in lines])


@pytest.mark.parametrize(
    ("says", "where"),
    [
        (lambda state, checkpoint: launch_messages.suspended(state)[0], "latest"),
        (lambda state, checkpoint: messages.stopped(state, checkpoint, "end"), "latest"),
        (lambda state, checkpoint: messages.nothing_to_stop(state), "latest"),
        (lambda state, checkpoint: messages.not_stopped(state, checkpoint, "its driver failed"), "chk-2"),
    ],
)
def test_resume_command_names_run_and_restore_point(says: Callable[[State, Checkpoint], str], where: str) -> None:
    """The job id alone would mean the history that changed last."""
    recorded = asked("suspend_savepoint")
    state = replace(recorded.state, scope="daily 1", suspended="2026-11-21T02:14:33.560Z (ann, file:///s)")
    assert f"restore orders 'daily 1' --from {where}" in says(state, recorded.state.pending[0])


def test_nothing_to_stop_says_where_queries_continue() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.ended("22:10:00", "failed", 1)
    location = QueryLocation(path="query/orders/1-abc", branch=0)
    stream = replace(recorded.state, queries=(QueryRecord(uid="orders", locations=(location,)),))
    assert "starts from nothing, so an upgrade" in messages.nothing_to_stop(recorded.state)
    told = messages.nothing_to_stop(stream)
    assert "starts from nothing, and the queries continue after their newest batches, so an upgrade needs no" in told


def test_lines_of_a_savepoint_that_could_not_be_copied(golden: Golden) -> None:
    recorded = asked("savepoint")
    (checkpoint,) = recorded.state.pending
    recorded.aborted(checkpoint.id, "22:12:30", "store failed", "cannot write s3://lake/savepoints: denied")
    nonce = messages.savepoint(checkpoint).rpartition("-")[2]
    gone = recorded.state.checkpoint(checkpoint.id)
    assert gone
    golden("aborted_savepoint", [line.replace(nonce, "9f3c") for line in messages.aborted(recorded.state, gone)])
