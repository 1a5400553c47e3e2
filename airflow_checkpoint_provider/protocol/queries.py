"""Decisions about streaming queries: in which location a query runs. Pure. Runs anywhere.

An attempt copies the newest location into one of its own, and names that in an entry before it starts the query. So of two
drivers that copy one location, one is refused.
"""

from __future__ import annotations

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches, wording
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
from airflow_checkpoint_provider.protocol.state import State


def locate(state: State, command: c.LocateQuery) -> Decision:
    """Decide whether a query runs in a new location: the one that it was copied from must still be the newest."""
    query = state.query(command.uid)
    if query and query.newest.path == command.path:
        return DoneAlready(command.epoch)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    newest = query.newest.path if query else None
    if command.taken_from != newest:
        return Refusal(
            errors.QueryMoved(
                f"query '{command.uid}' runs in {newest} now, so it cannot continue from {command.taken_from or 'nothing'}."
                " Nothing was started; start the job again",
                uid=command.uid,
            )
        )
    located = e.QueryLocated(
        uid=command.uid,
        path=command.path,
        taken_from=command.taken_from,
        begun=command.begun,
        committed=command.committed,
        gone_back=command.gone_back,
        adopted=command.adopted,
        sink=command.sink,
        format=command.format,
        after=command.after,
        rewound=state.branch.number if command.gone_back else query.newest.rewound if query else 0,
        further=_further(state, query, command),
    )
    return (located,)


def _further(state: State, query: QueryRecord | None, command: c.LocateQuery) -> int:
    """Return the launch that has committed batches in the older location of a query; 0 for none. The older location is given up soon."""
    if query is None or command.gone_back or command.committed <= query.newest.committed:
        return 0  # also where the query went back, which changes the numbers
    attempt = state.attempt(file_set_epoch(query.newest.path))
    return attempt.launch if attempt else 0


def settle(state: State, command: c.SettleQuery) -> Decision:
    """Decide whether the older locations of a query are given up. Only the attempt that runs in the newest location knows that."""
    query = state.query(command.uid)
    if query and query.locations[0].path == command.path and not query.newest.adopted:
        return DoneAlready(command.epoch)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if query is None or query.newest.path != command.path:
        return Refusal(
            errors.QueryMoved(
                f"query '{command.uid}' does not run in {command.path}; no older location was given up", uid=command.uid
            )
        )
    return (e.QuerySettled(uid=command.uid, path=command.path),)


def run_since(state: State, savepoint: Checkpoint | None) -> list[str]:
    """Return the queries that may have committed batches which a restore point of this history does not hold: a ``savepoint``, or one of
    another history (None). The savepoint of a stop holds all batches of the attempt that it stopped.
    """
    stopped = max(savepoint.epochs) if savepoint and savepoint.suspends else 0
    on = (query for query in state.queries if not state.branch.goes_back(query))
    return [query.uid for query in on if file_set_epoch(query.newest.path) > stopped]


def runs(state: State, undone: str) -> errors.JobAlreadyRunning | None:
    """Return the error, which says what was ``undone``, if an attempt runs; None if none does."""
    attempt = next(state.living(), None)
    if attempt is None:
        return None
    stop = wording.command("stop", state.job, *wording.item_option(state), state=state)
    return errors.JobAlreadyRunning(
        f"attempt {attempt.epoch} of {state.job} runs, or nobody has said how it ended; {undone}. Stop the job:"
        f" `{stop}`. If its driver is gone: `{wording.restore(state, 'latest')}`"
    )


def release(state: State, command: c.ReleaseQuery) -> Decision:
    """Decide whether a query may go on without this package. No attempt may run: it could start the query meanwhile."""
    query, released = state.query(command.uid), state.released_query(command.uid)
    if query is None and released and released.to == command.to:
        return DoneAlready(state.last_epoch)
    if running := runs(state, f"query '{command.uid}' was not released"):
        return Refusal(running)
    newest = query.newest.path if query else None
    if command.path != newest:
        return Refusal(
            errors.QueryMoved(
                f"query '{command.uid}' runs in {newest or 'no location'} by now; it was not released. Try again",
                uid=command.uid,
            )
        )
    if query is None and released:
        return Refusal(
            errors.QueryMoved(f"query '{command.uid}' was released to {released.to} already", uid=command.uid)
        )
    event = e.QueryReleased(
        uid=command.uid, path=newest, to=command.to, begun=command.begun, committed=command.committed
    )
    return (event,)
