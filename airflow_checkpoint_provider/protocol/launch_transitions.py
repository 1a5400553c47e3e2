"""The effects of events about histories, launches, attempts and branches on the state. Pure. Runs anywhere.

Nothing here decides or refuses: an event in the journal has happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import sink_transitions
from airflow_checkpoint_provider.protocol.checkpoint_records import Claim
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Branch, EndRecord, Launch, Run
from airflow_checkpoint_provider.protocol.query_records import QueryRecord, Released
from airflow_checkpoint_provider.protocol.state import Closing, State
from airflow_checkpoint_provider.protocol.updates import bounded, counted, merged_extra, remember, swap

_Query = TypeVar("_Query", QueryRecord, Released)


def open_history(state: State, event: e.HistoryOpened) -> State:
    names = replace(state, incarnation=event.incarnation, job=event.job, scope=event.scope, item=event.item)
    return replace(names, closing=None, extra=merged_extra(state, event))


def begin_closing(state: State, event: e.HistoryClosing) -> State:
    return replace(state, closing=Closing(reason=event.reason), extra=merged_extra(state, event))


def close_history(state: State, event: e.HistoryClosed) -> State:
    """Keep the names and the counters, so that numbers go on rising when the history is opened again."""
    return State(
        n=state.n,
        at=state.at,
        incarnation=state.incarnation,
        job=state.job,
        scope=state.scope,
        item=state.item,
        branch=Branch(number=state.branch.number),
        next_launch=state.next_launch,
        next_id=state.next_id,
        last_epoch=state.last_epoch,
        next_file_set=state.next_file_set,
        sinks=sink_transitions.close(state),
        closing=Closing(reason=event.reason, done=True),
        extra=merged_extra(state, event),
    )


def plan_launch(state: State, event: e.LaunchPlanned) -> State:
    launch = Launch(
        number=event.launch,
        spec=event.spec,
        at=state.at,
        restore_point=event.restore_point,
        branch=state.branch.number,
        extra=event.extra,
    )
    state = replace(
        state,
        launches=bounded((*state.launches, launch))[1],
        current_launches={**state.current_launches, event.spec.application: event.launch},
        next_launch=event.launch + 1,
        tokens=remember(
            _tokens_without_branch(state, event.spec.token),
            event.spec.token.launch_text(event.spec.try_number),
            event.launch,
        ),
    )
    return _list_run(state, event)


def _tokens_without_branch(state: State, token: e.Token) -> dict[str, int]:
    """Return the tokens without the branch's: a launch that opened its branch itself is remembered as a launch."""
    return {text: number for text, number in state.tokens.items() if text != token.text}


def _list_run(state: State, event: e.LaunchPlanned) -> State:
    """List the run of a launch as the newest. A launch of a run that had ended makes the run go on."""
    listed = state.run(event.spec.run)
    run = Run(
        key=event.spec.run,
        owner=event.spec.owner,
        run_after=event.spec.run_after,
        started_at=event.spec.started_at,
        started_from=event.restore_point,
        launch=event.launch,
        generation=event.spec.token.generation,
        map_index=event.spec.map_index,
        rename=state.branch.rename if event.restore_point == state.branch.base else {},
    )
    if listed:
        run = replace(
            listed,
            launch=event.launch,
            generation=event.spec.token.generation,
            map_index=event.spec.map_index,
            ending=None,
        )
        if state.branch.token == event.spec.token:  # its clear opened the branch: there it comes after the older runs
            run = replace(run, branch=state.branch.number)
    runs = (*(other for other in state.runs if other is not listed), run)
    dropped, kept = bounded(runs)
    in_branch = (other.order for other in dropped if other.branch == state.branch.number)
    return replace(
        state,
        runs=kept,
        evicted_run_after=max((state.evicted_run_after, *in_branch)),
        evicted_run_after_anywhere=max((state.evicted_run_after_anywhere, *(other.order for other in dropped))),
    )


def adopt_launch(state: State, event: e.LaunchAdopted) -> State:
    launch = state.launch(event.launch)
    if launch is None:
        return state
    same_index = event.map_index == launch.map_index
    adopted = replace(
        launch,
        adopted_by=max(launch.adopted_by, event.try_number) if same_index else event.try_number,
        adopted_index=event.map_index,
        ending=None,
        extra=merged_extra(launch, event),
    )
    run = state.run(launch.spec.run)
    return replace(
        state,
        launches=swap(state.launches, launch, adopted),
        runs=swap(state.runs, run, _of_adopter(run, event)) if run else state.runs,
        tokens=remember(state.tokens, event.token.launch_text(event.try_number), event.launch),
    )


def _of_adopter(run: Run, event: e.LaunchAdopted) -> Run:
    return replace(run, generation=event.token.generation, map_index=event.map_index)


def request_stop(state: State, event: e.StopRequested) -> State:
    return _change_launch(state, event, stop=f"{event.by}: {event.reason}")


def end_launch(state: State, event: e.LaunchEnded) -> State:
    ending = EndRecord(outcome=event.outcome, at=state.at, exit_code=event.exit_code)
    return _change_launch(state, event, ending=ending, cause=event.cause)


def _change_launch(state: State, event: e.StopRequested | e.LaunchEnded, **changes: Any) -> State:
    """Change fields of the event's launch. A launch that the state no longer lists is passed over."""
    launch = state.launch(event.launch)
    if launch is None:
        return state
    changed = replace(launch, extra=merged_extra(launch, event), **changes)
    return replace(state, launches=swap(state.launches, launch, changed))


def start_attempt(state: State, event: e.AttemptStarted) -> State:
    launch = state.launch(event.launch)
    point = event.restore_point
    restored = state.checkpoint(point.id) if point else None
    attempt = AttemptRecord(
        epoch=event.epoch,
        launch=event.launch,
        application=launch.spec.application if launch else "",
        driver=event.driver,
        restore_point=point,
        application_digest=event.application_digest,
        application_parts=event.application_parts,
        versions=event.versions,
        checkpointing=event.checkpointing,
        at=state.at,
        held_file_sets=restored.file_sets if restored else (),
        extra=event.extra,
    )
    # Only the next attempt compares parts with those of the attempt before it.
    older = tuple(replace(record, application_parts={}) for record in state.attempts[:-1])
    dropped, kept = bounded((*older, *state.attempts[-1:], attempt))
    return replace(
        state,
        attempts=kept,
        sinks=sink_transitions.take_out(state),
        last_epoch=max(state.last_epoch, event.epoch),
        counts=counted(state, "restored") if any(old.restore_point for old in dropped) else state.counts,
    )


def end_attempt(state: State, event: e.AttemptEnded) -> State:
    attempt = state.attempt(event.epoch)
    if attempt is None:
        return state
    again = attempt.outcome == event.outcome  # only its cause is new
    ending = EndRecord(
        outcome=event.outcome,
        at=attempt.ended_at if again else state.at,
        exit_code=event.exit_code,
        reported_by=event.reported_by,
    )
    ended = replace(attempt, ending=ending, cause=event.cause or attempt.cause, extra=merged_extra(attempt, event))
    state = replace(state, attempts=swap(state.attempts, attempt, ended))
    run = state.run_of(attempt.epoch)
    if run is None or run.launch != attempt.launch:
        return state
    return replace(
        state, runs=swap(state.runs, run, replace(run, ending=EndRecord(outcome=event.outcome, at=ending.at)))
    )


def open_branch(state: State, event: e.BranchOpened) -> State:
    branch = Branch(
        number=event.branch,
        base=event.base,
        token=event.token,
        reason=event.reason,
        at=state.at,
        rename=event.rename,
        rewinds=event.rewinds,
        rewind_sink=event.rewind_sink,
        extra=event.extra,
    )
    names = state.new_names(event.base, event.rename)
    dropped = max(state.evicted_run_after, state.evicted_run_after_anywhere)
    return replace(
        state,
        branch=branch,
        evicted_run_after=dropped if event.base and event.base.pointer is None else "",
        evicted_run_after_anywhere=dropped,
        next_id=max(state.next_id, event.id_floor + 1),
        claims=_claims(state, event),
        current_launches=dict.fromkeys(state.current_launches),
        runs=_runs_inside(state, event),
        sinks=sink_transitions.rename(sink_transitions.go_back(state, event.base), names),
        queries=tuple(_renamed(query, names) for query in state.queries),
        released=tuple(_renamed(query, names) for query in state.released),
        tokens=remember(state.tokens, event.token.text, state.next_launch),
    )


def _renamed(query: _Query, rename: Mapping[str, str]) -> _Query:
    def now(uid: str) -> str:
        return rename.get(uid, uid)

    locations = tuple(replace(location, after=tuple(map(now, location.after))) for location in query.locations)
    was = query.was if now(query.uid) == query.uid else (*query.was, query.uid)
    return replace(query, uid=now(query.uid), was=was, locations=locations)


def _claims(state: State, event: e.BranchOpened) -> tuple[Claim, ...]:
    pointer = event.base.pointer if event.base else None
    if not event.claimed or pointer is None:
        return state.claims
    return (*(claim for claim in state.claims if claim.pointer != pointer), Claim(pointer=pointer, at=state.at))


def _runs_inside(state: State, event: e.BranchOpened) -> tuple[Run, ...]:
    """Mark the runs that count in the new branch: those inside the checkpoint from which it starts.

    An earlier step back has moved some of them to its own branch. If the run of the checkpoint is no longer listed, every
    run that may be inside counts.
    """
    base = state.checkpoint(event.base.id) if event.base else None
    if base is None:
        return state.runs
    newest = state.run_of(base.epochs[0])

    def counts(run: Run) -> bool:
        within = newest is None or run.order <= newest.order
        return run is newest or (run.branch is not None and run.branch >= base.branch and within)

    return tuple(replace(run, branch=event.branch) if counts(run) else run for run in state.runs)


def resume(state: State, event: e.Resumed) -> State:
    return replace(state, suspended=None)
