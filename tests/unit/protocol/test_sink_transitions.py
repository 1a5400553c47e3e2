"""Tests of what the journal knows of sinks after checkpoints were completed and confirmed. Run anywhere."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import sink_transitions
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint, Completion
from airflow_checkpoint_provider.protocol.metadata import SINK, SinkVersion, StateEntry
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkRecord


def checkpoint(version: int, *, epoch: int = 1, gated_sink: bool = False, gated: bool = False) -> Checkpoint:
    """Return a completed checkpoint that holds the sink ``report`` up to ``version``."""
    held = SinkVersion(version=version, target="/data/report", gated=gated_sink, transactions=version)
    entry = StateEntry(uid="report", kind=SINK, run="r", sink=held)
    done = Completion(at="2026-11-22T10:00:00Z", n=9, digest="d", bytes=0, metadata_bytes=1, states=(entry,))
    return Checkpoint(
        id=version + 1,
        epochs=(epoch,),
        branch=0,
        plan=("",),
        request=e.Request(token="t", gated=gated),
        timeout_s=60.0,
        triggered_at="2026-11-22T10:00:00Z",
        completion=done,
    )


def after(state: State, *checkpoints: Checkpoint) -> SinkRecord:
    for each in checkpoints:
        state = sink_transitions.complete(state, each)
    return state.sink("report")


def test_writes_of_a_completed_checkpoint_are_due() -> None:
    found = after(State(), checkpoint(2))
    assert (found.version, found.due, found.due_epoch, found.confirmed, found.uncommitted) == (2, 2, 1, 0, 2)


def test_closed_history_keeps_versions_and_nothing_that_is_due() -> None:
    state = sink_transitions.complete(State(), checkpoint(2))
    state = sink_transitions.complete(sink_transitions.confirm(state, checkpoint(2)), checkpoint(3))
    assert state.sink("report").uncommitted == 1
    (kept,) = sink_transitions.close(state)
    assert kept == SinkRecord(uid="report", version=3, due=2, confirmed=2, closed=3)


def test_confirmed_writes_are_not_due_any_more() -> None:
    state = sink_transitions.complete(State(), checkpoint(2))
    state = sink_transitions.confirm(state, checkpoint(2))
    assert state.sink("report").uncommitted == 0
    assert after(state, checkpoint(3)).uncommitted == 1


def test_checkpoint_that_completes_late_takes_nothing_back() -> None:
    found = after(State(), checkpoint(5, epoch=2), checkpoint(3, epoch=1))
    assert (found.version, found.epoch, found.due, found.due_epoch) == (5, 2, 5, 2)


def test_only_a_gated_checkpoint_publishes_a_gated_sink() -> None:
    automatic, gated = checkpoint(4, gated_sink=True), checkpoint(2, gated_sink=True, gated=True)
    assert (after(State(), automatic).version, after(State(), automatic).due) == (4, 0)
    assert (after(State(), automatic, gated).version, after(State(), automatic, gated).due) == (4, 2)


def test_confirmation_of_an_ungated_checkpoint_confirms_nothing_of_a_gated_sink() -> None:
    automatic = checkpoint(4, gated_sink=True)
    state = sink_transitions.confirm(sink_transitions.complete(State(), automatic), automatic)
    assert state.sink("report").confirmed == 0


def test_checkpoint_without_sinks_changes_nothing() -> None:
    held = checkpoint(2)
    assert held.completion
    bare = replace(held, completion=replace(held.completion, states=()))
    assert sink_transitions.complete(State(), bare).sinks == ()


def test_numbers_that_the_script_writes_with_are_not_due() -> None:
    held = checkpoint(2)
    assert held.completion
    numbers = replace(held.completion.states[0], sink=SinkVersion(version=2))
    bare = replace(held, completion=replace(held.completion, states=(numbers,)))
    found = after(State(), bare)
    assert (found.version, found.due, found.uncommitted) == (2, 0, 0)
