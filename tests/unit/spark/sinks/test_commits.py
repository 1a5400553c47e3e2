"""Commits of what completed checkpoints hold. Runs anywhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import CommitFailed
from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.spark.sinks.commits import Commits
from tests.support.targets import name_of

WAITING = Transaction(
    name=name_of(1), version=1, run="monday", write=0, origin=Origin(plan="p", inputs=""), rows=1, bytes=1, prepared={}
)


def test_write_that_somebody_aborts_while_it_waits_fails_the_attempt() -> None:
    """The script has passed it. The next attempt does it again."""
    state = SimpleNamespace(uid="report", uncommitted=lambda: [WAITING])
    sinks: Any = SimpleNamespace(opened={"report": state}, due_version=lambda _: 1, commit=lambda *_: False)
    attempt: Any = None
    with pytest.raises(CommitFailed, match="write 1 was aborted by somebody else while it waited") as failed:
        Commits(attempt, sinks).wait()
    assert not failed.value.permanent
