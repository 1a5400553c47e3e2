"""The effect of each event on the state: ``apply(state, event) -> state``, pure. Runs anywhere.

``fold`` applies a whole entry of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from airflow_checkpoint_provider.protocol import checkpoint_transitions as checkpoints
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launch_transitions as launches
from airflow_checkpoint_provider.protocol import query_transitions as queries
from airflow_checkpoint_provider.protocol.state import State


def apply(state: State, event: e.Event) -> State:
    """Return the state after ``event``."""
    return TRANSITIONS[type(event)](state, event)


def fold(state: State, n: int, at: str, events: Iterable[e.Event]) -> State:
    """Return the state after entry ``n``, which was written ``at`` (ISO, UTC) and holds ``events``."""
    state = replace(state, n=n, at=at)
    for event in events:
        state = apply(state, event)
    return state


TRANSITIONS: dict[type[e.Event], Callable[[State, Any], State]] = {
    e.HistoryOpened: launches.open_history,
    e.HistoryClosing: launches.begin_closing,
    e.HistoryClosed: launches.close_history,
    e.LaunchPlanned: launches.plan_launch,
    e.LaunchAdopted: launches.adopt_launch,
    e.StopRequested: launches.request_stop,
    e.LaunchEnded: launches.end_launch,
    e.AttemptStarted: launches.start_attempt,
    e.AttemptEnded: launches.end_attempt,
    e.BranchOpened: launches.open_branch,
    e.RequestQueued: checkpoints.queue_request,
    e.RequestDropped: checkpoints.drop_request,
    e.QueueDropped: checkpoints.drop_queue,
    e.CheckpointTriggered: checkpoints.trigger,
    e.CheckpointCompleted: checkpoints.complete,
    e.CheckpointAborted: checkpoints.abort,
    e.CommitsConfirmed: checkpoints.confirm_commits,
    e.SavepointPublished: checkpoints.confirm_published,
    e.CheckpointsCondemned: checkpoints.condemn,
    e.CheckpointsForgotten: checkpoints.forget,
    e.QueryLocated: queries.locate,
    e.QuerySettled: queries.settle,
    e.QueryReleased: queries.release,
    e.Resumed: launches.resume,
}
