"""How many failures in a row count against an attempt."""

from __future__ import annotations

from airflow_checkpoint_provider.spark.protection import failed_in_a_row
from tests.support.recorded import Recorded


def failed(recorded: Recorded, *reasons: str) -> None:
    for reason in reasons:
        recorded.aborted(recorded.triggered("stage 'clean'", "22:10:00"), "22:10:01", reason)


def counted(recorded: Recorded) -> list[str]:
    return [one.reason for one in failed_in_a_row(recorded.state, recorded.state.last_epoch)]


def test_failures_of_this_attempt_since_one_was_completed() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    failed(recorded, "expired")
    assert counted(recorded) == ["expired"]
    recorded.completed("stage 'clean'", "22:11:00", "22:11:02")
    assert counted(recorded) == []
    failed(recorded, "declined", "changed my mind", "store failed")
    assert counted(recorded) == ["declined", "store failed"], "an abort that somebody wanted is no failure"


def test_those_of_earlier_attempts_are_theirs() -> None:
    """Else the retry of one that failed for them would fail at once."""
    recorded = Recorded()
    recorded.started("22:00:20")
    failed(recorded, "expired", "expired")
    recorded.ended("22:20:00", "failed", 1)
    recorded.started("22:21:00", try_number=2)
    assert counted(recorded) == []
