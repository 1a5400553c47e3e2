"""What a person reads after a restore by hand. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text.manual_restore import next_step


def test_restore_of_a_history_that_has_lost_its_launches_says_that_nothing_was_started() -> None:
    """The restore has happened by then: a traceback would hide it."""
    assert next_step(State(job="orders")) == "Nothing was started: run the script"
