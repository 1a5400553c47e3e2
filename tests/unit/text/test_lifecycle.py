"""Log lines of tasks that drive a checkpoint. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import Queued
from airflow_checkpoint_provider.protocol.events import Request, Token
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import messages
from tests.support.recorded import Recorded
from tests.unit.text.conftest import Golden

POINTER = Pointer("file:///lake", "jobs/flights_etl.delays/job", 1)


def asked(gated: bool, request: str) -> Recorded:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.coordinator.trigger(Request(token=request, gated=gated, origin="task"))
    return recorded


def test_lines_of_a_triggered_checkpoint(golden: Golden) -> None:
    states = [asked(gated, "barrier 1").state for gated in (False, True)]
    lines = [messages.triggered(state, state.pending[0], POINTER) for state in states]
    golden("asked", [*lines, messages.acknowledged(states[1], states[1].pending[0])])


def test_line_of_a_queued_request_names_a_long_wait(golden: Golden) -> None:
    """A short wait is not mentioned."""
    recorded = asked(False, "barrier 1")
    lines = []
    for number, (asks, ends) in enumerate(
        (("22:10:00.000", "22:12:05.000"), ("22:20:00.000", "22:20:00.100")), start=1
    ):
        recorded.clock = f"2026-11-20T{asks}Z"
        with pytest.raises(Queued):
            recorded.coordinator.trigger(Request(token=asks, origin="task"))
        recorded.clock = f"2026-11-20T{ends}Z"
        recorded.coordinator.abort(number, "expired")
        lines.append(messages.triggered(recorded.state, recorded.state.pending[0], POINTER))
    golden("asked_and_queued", lines)


def aborted(request: str, words: str = "") -> State:
    recorded = asked(True, request)
    recorded.aborted(1, "22:12:20", "expired", words)
    return recorded.state


def test_line_of_an_aborted_checkpoint_names_the_task_to_clear(golden: Golden) -> None:
    by_a_task = Token(dag="orders_audited", run="manual__1", task="checkpoint.trigger", item="-1", generation=2).text
    states = aborted(by_a_task, "batch 412 has been running for 14 min"), aborted("barrier 1")
    golden("will_not_complete", [messages.will_not_complete(state, state.checkpoints[0]) for state in states])
