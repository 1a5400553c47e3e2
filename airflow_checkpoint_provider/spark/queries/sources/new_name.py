"""A query that begins while another one of the job is not started: perhaps it is that one under a new name. Runs in the Spark driver.

The log of a folder takes each number of a batch once, so a second query is refused there (``one_writer.py``). A table counts the batches of
each query by its id, and other sinks count none. There a query with a new name would write all rows again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_checkpoint_provider.coordinator.assignment import Allowed, undecided
from airflow_checkpoint_provider.errors import NonRestoredState
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sources.one_writer import (
    NotStarted,
    also_spelled,
    not_started,
    same_folder,
)
from airflow_checkpoint_provider.text import query_messages

ROWS_STAY_NOWHERE = ("console", "noop")


def refuse_new_name(
    uid: str,
    sink: StreamSink,
    started: Mapping[str, StreamSink],
    state: State,
    restored: Mapping[str, StateSnapshot],
    allowed: Allowed,
) -> None:
    """Raise ``NonRestoredState`` if a query that begins would write to the table of one that is not ``started``.

    A sink without a path does not say whether it is the same one, and the script may start the other query later. So that is only logged.
    ``restored``: the states of the newest checkpoint. ``allowed``: what the job says of states that it does not use.
    """
    if state.query(uid) or uid in restored:
        return
    found = list(not_started(uid, started, state, restored))
    open_ones = undecided((other.uid for other in found), allowed)
    others = [other for other in found if other.uid in open_ones]
    if sink.path:
        _refuse_table(uid, sink.path, [one for one in others if one.path and same_folder(sink.path, one.path)], state)
    elif sink.target.format not in ROWS_STAY_NOWHERE:
        same = [one.uid for one in others if not one.path and one.format in (None, sink.target.format)]
        if same:
            say(query_messages.perhaps_renamed(uid, sink.target.format, same, state))


def _refuse_table(uid: str, path: str, others: Sequence[NotStarted], state: State) -> None:
    if not others:
        return
    other = others[0]
    raise NonRestoredState(
        f"query '{uid}' would start from its beginning and write to {path}, where query {other.wrote}{also_spelled(other.path, path)}. If it is"
        f" that query under a new name, all rows would be written again. '{uid}' was not started. {_ways_out(uid, other.uid, state)}. If"
        f" '{uid}' is a query of its own, set {wording.keeping(one.uid for one in others)}",
        uid=other.uid,
    )


def _ways_out(uid: str, other: str, state: State) -> str:
    if state.released_query(other):
        return f"Take '{other}' over again, under its name"
    restore = wording.restore(state, "latest", "--rename", f"{other}={uid}")
    return f"If '{uid}' is its new name: `{restore}`. If the script starts both, start '{other}' before '{uid}'"
