"""The number of checkpoint failures in a row: which failures count, and for which attempt. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.protocol import commands as c
from tests.support.histories import History

TARGET = "s3://lake/savepoints"


def running() -> History:
    history = History()
    history.started()
    return history


def failing(history: History, *reasons: str) -> int:
    for reason in reasons:
        history.do(c.Abort(id=history.triggered(), reason=reason))
    return len(history.state.failed())


@pytest.mark.parametrize(
    ("reasons", "count"),
    [
        (("expired",), 1),
        (("declined",), 1),
        (("store failed",), 1),
        (("too large",), 1),
        (("expired", "declined", "expired"), 3),
        (("attempt replaced",), 0),
        (("subsumed", "restore", "by a DAG"), 0),
        (("expired", "attempt replaced", "expired"), 2),
    ],
)
def test_failure_counts_by_its_reason(reasons: tuple[str, ...], count: int) -> None:
    """As in Flink's failure manager, five reasons count, each id once."""
    assert failing(running(), *reasons) == count


def test_newer_success_resets_the_count() -> None:
    history = running()
    failing(history, "expired", "expired")
    history.completed()
    assert not history.state.failed()
    assert failing(history, "declined") == 1


def test_older_success_does_not_reset_the_count() -> None:
    """A checkpoint completes late; its id is lower than that of the failed one."""
    history = running()
    gated = history.triggered(gated=True)
    failing(history, "expired")
    history.do(
        c.Complete(id=gated, digest="d", metadata_bytes=9, bytes=0, states=(), acknowledged=("",), finalize=True)
    )
    assert len(history.state.failed()) == 1


def test_late_failure_of_an_older_id_does_not_count() -> None:
    history = running()
    gated = history.triggered(gated=True)
    history.completed()
    history.do(c.Abort(id=gated, reason="expired"))
    assert not history.state.failed()


@pytest.mark.parametrize(("reason", "count"), [("expired", 0), ("declined", 1), ("store failed", 1)])
def test_expired_savepoint_does_not_count(reason: str, count: int) -> None:
    history = running()
    number = history.triggered(kind="savepoint", folder=TARGET, nonce="9f3c", origin="task")
    history.do(c.Abort(id=number, reason=reason))
    assert len(history.state.failed()) == count


def test_completed_savepoint_resets_the_count() -> None:
    history = running()
    failing(history, "expired")
    history.completed(number=history.triggered(kind="savepoint", folder=TARGET, nonce="9f3c", origin="task"))
    assert not history.state.failed()


def test_failures_are_counted_per_attempt() -> None:
    """Otherwise the retry of an attempt that ended for its failures would end at once."""
    history = running()
    failing(history, "expired", "expired")
    history.started(try_number=2)
    failing(history, "declined")
    assert [len(history.state.failed(epoch)) for epoch in (None, 1, 2)] == [3, 2, 1]
