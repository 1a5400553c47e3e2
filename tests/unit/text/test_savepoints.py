"""What is said of savepoints, of stopping with one, and of failures that are too many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.state import Checkpoint, State
from airflow_checkpoint_provider.text import messages
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


def test_while_it_is_copied(golden: Golden) -> None:
    (one,) = asked("savepoint").state.pending
    name = messages.savepoint(one).rpartition("-")[0]
    golden(
        "saving",
        [
            messages.copied(f"{name}-9f3c", 12 * 1024**3, 61 * 1024**3),
            messages.brought_in("s3://lake/savepoints/savepoint-orders-41-9f3c", 214, 61 * 1024**3),
            messages.not_published("cannot write s3://lake/savepoints: 503"),
            messages.not_tolerated(3, 2, "chk-7 expired: nobody came"),
        ],
    )


def test_a_stop(golden: Golden) -> None:
    recorded = asked("suspend_savepoint")
    (one,) = recorded.state.pending
    lines = [
        messages.stopped(recorded.state, one, "stage 'clean'"),
        messages.stopped(recorded.state, one, "end", "the store does not answer"),
        messages.goes_on(recorded.state, one),
        messages.not_known(one, "the store does not answer"),
    ]
    nonce = messages.savepoint(one).rpartition("-")[2]
    golden("stopping", [line.replace(nonce, "9f3c") for line in lines])


@pytest.mark.parametrize(
    ("says", "where"),
    [
        (lambda state, one: messages.suspended(state)[0], "latest"),
        (lambda state, one: messages.stopped(state, one, "end"), "latest"),
        (lambda state, one: messages.nothing_to_stop(state), "latest"),
        (lambda state, one: messages.not_stopped(state, one, "its driver failed"), "chk-2"),
    ],
)
def test_what_lets_it_go_on_names_the_history_that_is_meant(
    says: Callable[[State, Checkpoint], str], where: str
) -> None:
    """The job alone would be the history that moved last."""
    recorded = asked("suspend_savepoint")
    state = replace(recorded.state, scope="daily 1", suspended="ann")
    assert f"restore orders 'daily 1' --from {where}" in says(state, recorded.state.pending[0])


def test_one_that_could_not_be_copied(golden: Golden) -> None:
    recorded = asked("savepoint")
    (one,) = recorded.state.pending
    recorded.aborted(one.id, "22:12:30", "store failed", "cannot write s3://lake/savepoints: denied")
    nonce = messages.savepoint(one).rpartition("-")[2]
    gone = recorded.state.checkpoint(one.id)
    assert gone
    golden("aborted_savepoint", [line.replace(nonce, "9f3c") for line in messages.aborted(recorded.state, gone)])
