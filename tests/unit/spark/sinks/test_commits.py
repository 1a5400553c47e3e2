"""Commits of what completed checkpoints hold. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import CommitFailed
from airflow_checkpoint_provider.protocol.metadata import SINK, SinkVersion, StateEntry
from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.spark.sinks.commits import Commits
from tests.support.targets import name_of

WAITING = Transaction(
    name=name_of(1), version=1, run="monday", write=0, origin=Origin(plan="p", inputs=""), rows=1, bytes=1, prepared={}
)


@pytest.mark.parametrize("aborted", [False, True])
def test_restore_point_is_confirmed_unless_a_write_of_it_was_aborted(aborted: bool) -> None:
    """Otherwise the next attempt would take that write for committed."""
    held = SinkVersion(version=1, transactions=1)
    entry = StateEntry(uid="report", kind=SINK, run="monday", sink=held)
    state: Any = SimpleNamespace(sink=lambda _: SimpleNamespace(uncommitted=1))
    confirmed = list[int]()
    attempt: Any = SimpleNamespace(
        journal=SimpleNamespace(state=state), writer=SimpleNamespace(confirm_commits=confirmed.append)
    )
    sinks: Any = SimpleNamespace(
        opened={"report": SimpleNamespace(aborted=aborted)}, restored_checkpoint=SimpleNamespace(id=7, states=(entry,))
    )
    Commits(attempt, sinks).confirm_restored()
    assert confirmed == ([] if aborted else [7])


def test_write_that_somebody_aborts_while_it_waits_fails_the_attempt_and_holds_up_no_other() -> None:
    """The script has passed it. The next attempt does it again."""
    waiting = [WAITING, replace(WAITING, name=name_of(2), version=2)]
    state = SimpleNamespace(uid="report", uncommitted=lambda: waiting)

    def commit(_: Any, transaction: Transaction) -> bool:
        if transaction is not WAITING:
            waiting.remove(transaction)
        return transaction is not WAITING

    sinks: Any = SimpleNamespace(opened={"report": state}, due_version=lambda _: 2, commit=commit)
    attempt: Any = None
    with pytest.raises(CommitFailed, match=r"1 write .* aborted by somebody else while waiting") as failed:
        Commits(attempt, sinks).wait()
    assert not failed.value.permanent
    assert waiting == [WAITING]
