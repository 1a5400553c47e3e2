"""The effects of events about streaming queries on the state. Pure. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord, Released
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.updates import merged_extra, swap


def locate(state: State, event: e.QueryLocated) -> State:
    location = QueryLocation(
        path=event.path,
        branch=state.branch.number,
        taken_from=event.taken_from,
        begun=event.begun,
        committed=event.committed,
        gone_back=event.gone_back,
        adopted=event.adopted,
        sink=event.sink,
        format=event.format,
        after=event.after,
        rewound=event.rewound,
        extra=event.extra,
    )
    query = state.query(event.uid)
    if query is None:
        released = tuple(query for query in state.released if event.uid not in (query.uid, *query.was))
        begun = QueryRecord(uid=event.uid, locations=(location,))
        return replace(state, queries=(*state.queries, begun), released=released)
    moved = replace(query, locations=(*query.locations, location))
    launch = state.launch(event.further)
    launches = swap(state.launches, launch, replace(launch, further=True)) if launch else state.launches
    return replace(state, queries=swap(state.queries, query, moved), launches=launches)


def settle(state: State, event: e.QuerySettled) -> State:
    query = state.query(event.uid)
    if query is None or query.newest.path != event.path:
        return state
    newest = replace(query.newest, adopted=None)
    settled = replace(query, locations=(newest,), extra=merged_extra(query, event))
    return replace(state, queries=swap(state.queries, query, settled))


def release(state: State, event: e.QueryReleased) -> State:
    query = state.query(event.uid)
    released = Released(
        uid=event.uid,
        to=event.to,
        begun=event.begun,
        committed=event.committed,
        locations=query.locations if query else (),
        was=query.was if query else (),
        extra=event.extra,
    )
    others = tuple(query for query in state.queries if query.uid != event.uid)
    before = tuple(query for query in state.released if query.uid != event.uid)
    return replace(state, queries=others, released=(*before, released))
