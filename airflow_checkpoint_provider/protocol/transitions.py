"""What each event does to the state: ``apply(state, event) -> state``, pure. Runs anywhere.

``fold`` is the same over a whole entry. Nothing here decides or refuses: what stands in the journal has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.records import Record
from airflow_checkpoint_provider.protocol.state import (
    ABORTED,
    CONDEMNED,
    FORGOTTEN,
    KEPT_RECORDS,
    KEPT_TOKENS,
    RETAINED,
    AttemptRecord,
    Branch,
    Checkpoint,
    Claim,
    Dropped,
    FileSetEntry,
    Launch,
    QueuedRequest,
    Run,
    State,
)

E = TypeVar("E", bound=e.Event)
T = TypeVar("T")
_FOLDS: dict[type[e.Event], Callable[[State, Any], State]] = {}


def apply(state: State, event: e.Event) -> State:
    """The state after ``event``."""
    return _FOLDS[type(event)](state, event)


def fold(state: State, n: int, at: str, events: Iterable[e.Event]) -> State:
    """The state after entry ``n``, which was written ``at`` and holds ``events``."""
    state = replace(state, n=n, at=at)
    for event in events:
        state = apply(state, event)
    return state


def token_text(token: e.Token) -> str:
    """The text under which a token is remembered."""
    return "|".join((token.dag, token.run, token.task, token.item or "", str(token.generation)))


def launch_token(token: e.Token, try_number: int) -> str:
    """Launches add the try."""
    return f"{token_text(token)}|{try_number}"


def _folds(kind: type[E]) -> Callable[[Callable[[State, E], State]], Callable[[State, E], State]]:
    def register(function: Callable[[State, E], State]) -> Callable[[State, E], State]:
        _FOLDS[kind] = function
        return function

    return register


def _last(records: tuple[T, ...]) -> tuple[T, ...]:
    return records[-KEPT_RECORDS:]


def _remember(tokens: dict[str, int], text: str, number: int) -> dict[str, int]:
    """The newest by number, not by their order in the dict: a snapshot keeps none."""
    newest = sorted((tokens | {text: number}).items(), key=lambda one: (one[1], one[0]))
    return dict(newest[-KEPT_TOKENS:])


def _swap(records: tuple[T, ...], old: T | None, new: T) -> tuple[T, ...]:
    return tuple(new if one is old else one for one in records)


def _extra(record: Record, event: e.Event) -> dict[str, Any]:
    """What a newer version said of it, which this one does not know: handed on, so that its snapshots lose nothing."""
    return {**record.extra, **event.extra}


def _count(state: State, name: str) -> dict[str, int]:
    return {**state.counts, name: state.counts.get(name, 0) + 1}


@_folds(e.HistoryOpened)
def _opened(state: State, event: e.HistoryOpened) -> State:
    names = replace(state, incarnation=event.incarnation, job=event.job, scope=event.scope, item=event.item)
    return replace(names, closing=None, closed=False, extra=_extra(state, event))


@_folds(e.HistoryClosing)
def _closing(state: State, event: e.HistoryClosing) -> State:
    return replace(state, closing=event.why, extra=_extra(state, event))


@_folds(e.HistoryClosed)
def _closed(state: State, event: e.HistoryClosed) -> State:
    """Names stay, and the counters, so that whoever opens it again counts on."""
    return State(
        n=state.n, at=state.at, incarnation=state.incarnation, job=state.job, scope=state.scope, item=state.item,
        branch=Branch(number=state.branch.number), next_launch=state.next_launch, next_id=state.next_id,
        last_epoch=state.last_epoch, next_file_set=state.next_file_set, closing=event.why, closed=True, extra=_extra(state, event),
    )  # fmt: skip


@_folds(e.LaunchPlanned)
def _planned(state: State, event: e.LaunchPlanned) -> State:
    launch = Launch(
        number=event.launch, spec=event.spec, at=state.at, restore_point=event.restore_point,
        branch=state.branch.number, extra=event.extra,
    )  # fmt: skip
    state = replace(
        state,
        launches=_last((*state.launches, launch)),
        current={**state.current, event.spec.application: event.launch},
        next_launch=event.launch + 1,
        tokens=_remember(
            _without_branch(state, event.spec.token),
            launch_token(event.spec.token, event.spec.try_number),
            event.launch,
        ),
    )
    return _run_launched(state, event)


def _without_branch(state: State, token: e.Token) -> dict[str, int]:
    """A launch that opened its branch itself is remembered as a launch."""
    return {text: number for text, number in state.tokens.items() if text != token_text(token)}


def _run_launched(state: State, event: e.LaunchPlanned) -> State:
    """A run is listed from its first launch on; the newest stand last. A launch takes back that it had ended."""
    before = state.run(event.spec.run)
    run = Run(
        key=event.spec.run, owner=event.spec.owner, run_after=event.spec.run_after, started_at=event.spec.started_at,
        started_from=event.restore_point, launch=event.launch, generation=event.spec.token.generation,
        rename=state.branch.rename if event.restore_point == state.branch.base else {},
    )  # fmt: skip
    if before:
        run = replace(before, launch=event.launch, generation=event.spec.token.generation, how=None, ended_at=None)
        if state.branch.token == event.spec.token:  # its clear opened the branch: older runs stand before it there
            run = replace(run, inside=state.branch.number)
    runs = (*(one for one in state.runs if one is not before), run)
    dropped = runs[:-KEPT_RECORDS]
    inside = (one.position for one in dropped if one.inside == state.branch.number)
    return replace(
        state,
        runs=_last(runs),
        dropped_run_after=max((state.dropped_run_after, *inside)),
        dropped_elsewhere=max((state.dropped_elsewhere, *(one.position for one in dropped))),
    )


@_folds(e.LaunchAdopted)
def _adopted(state: State, event: e.LaunchAdopted) -> State:
    launch = state.launch(event.launch)
    if launch is None:
        return state
    adopted = replace(launch, adopted_by=max(launch.adopted_by, event.try_number), extra=_extra(launch, event))
    run = state.run(launch.spec.run)
    return replace(
        state,
        launches=_swap(state.launches, launch, adopted),
        runs=_swap(state.runs, run, replace(run, generation=event.token.generation)) if run else state.runs,
        tokens=_remember(state.tokens, launch_token(event.token, event.try_number), event.launch),
    )


@_folds(e.StopRequested)
def _stop(state: State, event: e.StopRequested) -> State:
    launch = state.launch(event.launch)
    if launch is None:
        return state
    stopping = replace(launch, stop=f"{event.by}: {event.reason}", extra=_extra(launch, event))
    return replace(state, launches=_swap(state.launches, launch, stopping))


@_folds(e.AttemptStarted)
def _started(state: State, event: e.AttemptStarted) -> State:
    launch = state.launch(event.launch)
    point = event.restore_point
    restored = state.checkpoint(point.id) if point else None
    attempt = AttemptRecord(
        epoch=event.epoch, launch=event.launch, application=launch.spec.application if launch else "", driver=event.driver,
        restore_point=point, application_digest=event.application_digest, versions=event.versions,
        checkpointing=event.checkpointing, at=state.at, holds=restored.file_sets if restored else (), extra=event.extra,
    )  # fmt: skip
    attempts = (*state.attempts, attempt)
    dropped = any(one.restore_point for one in attempts[:-KEPT_RECORDS])  # one at most
    return replace(
        state,
        attempts=_last(attempts),
        last_epoch=max(state.last_epoch, event.epoch),
        counts=_count(state, "restored") if dropped else state.counts,
    )


@_folds(e.AttemptEnded)
def _ended(state: State, event: e.AttemptEnded) -> State:
    attempt = state.attempt(event.epoch)
    if attempt is None:
        return state
    ended = replace(
        attempt, how=event.how, exit_code=event.exit_code, said_by=event.said_by, ended_at=state.at, extra=_extra(attempt, event)
    )  # fmt: skip
    state = replace(state, attempts=_swap(state.attempts, attempt, ended))
    launch = state.launch(attempt.launch)
    run = state.run(launch.spec.run) if launch else None
    if run is None or launch is None or run.launch != launch.number:
        return state
    return replace(state, runs=_swap(state.runs, run, replace(run, how=event.how, ended_at=state.at)))


@_folds(e.BranchOpened)
def _branched(state: State, event: e.BranchOpened) -> State:
    branch = Branch(
        number=event.branch, base=event.base, token=event.token, reason=event.reason, at=state.at, rename=event.rename,
        extra=event.extra,
    )  # fmt: skip
    dropped = max(state.dropped_run_after, state.dropped_elsewhere)
    return replace(
        state,
        branch=branch,
        dropped_run_after=dropped if event.base and event.base.pointer is None else "",
        dropped_elsewhere=dropped,
        next_id=max(state.next_id, event.above + 1),
        claims=_claimed(state, event),
        current=dict.fromkeys(state.current),
        runs=_inside(state, event),
        tokens=_remember(state.tokens, token_text(event.token), state.next_launch),
    )


def _claimed(state: State, event: e.BranchOpened) -> tuple[Claim, ...]:
    pointer = event.base.pointer if event.base else None
    if not event.claimed or pointer is None:
        return state.claims
    return (*(one for one in state.claims if one.pointer != pointer), Claim(pointer=pointer, at=state.at))


def _inside(state: State, event: e.BranchOpened) -> tuple[Run, ...]:
    """The runs that count in the new branch: those inside the checkpoint from which it starts. An earlier step back has
    moved some of them to its own branch. If nobody knows any more whose checkpoint it was, all that may be inside count."""
    base = state.checkpoint(event.base.id) if event.base else None
    if base is None:
        return state.runs
    attempt = state.attempt(base.epochs[0])
    launch = state.launch(attempt.launch) if attempt else None
    newest = state.run(launch.spec.run) if launch else None

    def counts(run: Run) -> bool:
        within = newest is None or run.position <= newest.position
        return run is newest or (run.inside is not None and run.inside >= base.branch and within)

    return tuple(replace(one, inside=event.branch) if counts(one) else one for one in state.runs)


@_folds(e.RequestQueued)
def _queued(state: State, event: e.RequestQueued) -> State:
    queued = QueuedRequest(request=event.request, epoch=event.epoch, queued_at=state.at, extra=event.extra)
    return replace(_asked(state, event.request.token), queue=(*state.queue, queued))


@_folds(e.RequestDropped)
def _dropped(state: State, event: e.RequestDropped) -> State:
    return _without(state, [queued for queued in state.queue if queued.request.token == event.token], event)


@_folds(e.QueueDropped)
def _queue_dropped(state: State, event: e.QueueDropped) -> State:
    return _without(state, state.unserved(), event)


def _without(state: State, gone: Sequence[QueuedRequest], event: e.RequestDropped | e.QueueDropped) -> State:
    """Those that waited in vain are remembered; what was dropped of them before went when they were queued."""
    requests = (queued.request for queued in gone)
    dropped = (
        Dropped(token=request.token, try_number=request.try_number, why=event.why, extra=event.extra)
        for request in requests
    )
    return replace(
        state,
        queue=tuple(one for one in state.queue if one not in gone),
        dropped=(*state.dropped, *dropped)[-KEPT_TOKENS:],
    )


def _asked(state: State, token: str) -> State:
    """Without what the queue and the dropped ones say of a request."""
    return replace(
        state,
        queue=tuple(queued for queued in state.queue if queued.request.token != token),
        dropped=tuple(one for one in state.dropped if one.token != token),
    )


@_folds(e.CheckpointTriggered)
def _triggered(state: State, event: e.CheckpointTriggered) -> State:
    checkpoint = Checkpoint(
        id=event.id, epochs=event.epochs, branch=event.branch, plan=event.plan, request=event.request,
        timeout_s=event.timeout_s, triggered_at=state.at, target=event.target, queued_at=event.queued_at, extra=event.extra,
    )  # fmt: skip
    return replace(
        _asked(state, event.request.token),
        next_id=event.id + 1,
        checkpoints=_bounded((*state.checkpoints, checkpoint)),
        requests=_remember(state.requests, event.request.token, event.id),
    )


def _bounded(checkpoints: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """All that is pending, retained or condemned, and the last of what is over."""
    over = [one.id for one in checkpoints if one.over]
    dropped = set(over[:-KEPT_RECORDS])
    return tuple(one for one in checkpoints if one.id not in dropped)


@_folds(e.CheckpointCompleted)
def _completed(state: State, event: e.CheckpointCompleted) -> State:
    checkpoint = state.checkpoint(event.id)
    if checkpoint is None:
        return state
    # A savepoint's file sets lie at its target and are nobody's but its own.
    paths = () if checkpoint.savepoint else [path for one in event.states for path in one.file_sets]
    state, numbers = _intern(state, paths)
    completed = replace(
        checkpoint, status=RETAINED, completed_at=state.at, ended_at=state.at, digest=event.digest, bytes=event.bytes,
        file_sets=numbers, states=tuple(replace(one, file_sets=()) for one in event.states),
        extra=_extra(checkpoint, event),
    )  # fmt: skip
    state = replace(
        state,
        checkpoints=_swap(state.checkpoints, checkpoint, completed),
        attempts=state.attempts if checkpoint.savepoint else _first_own(state, checkpoint),
        counts=_count(state, "completed"),
        suspended=f"{state.at} ({event.suspended})" if event.suspended else state.suspended,
    )
    for number in event.subsumed:
        state = apply(
            state, e.CheckpointAborted(id=number, reason="subsumed", phase="acknowledge", words=f"by chk-{event.id}")
        )
    return _mark_runs(state, completed)


def _first_own(state: State, checkpoint: Checkpoint) -> tuple[AttemptRecord, ...]:
    """From then on its attempt needs the point from which it started no more; a savepoint does not say so much."""
    return tuple(
        replace(one, first=checkpoint.id) if one.epoch in checkpoint.epochs and one.first is None else one
        for one in state.attempts
    )


def _mark_runs(state: State, completed: Checkpoint) -> State:
    """A job scope refuses runs older than those inside the state; so each run remembers where it completed something."""
    for epoch in completed.epochs:
        attempt = state.attempt(epoch)
        launch = state.launch(attempt.launch) if attempt else None
        run = state.run(launch.spec.run) if launch else None
        if run:
            state = replace(state, runs=_swap(state.runs, run, replace(run, inside=completed.branch)))
    return state


def _intern(state: State, paths: Sequence[str]) -> tuple[State, tuple[int, ...]]:
    known = {file_set.path: file_set.number for file_set in state.file_sets}
    new = [path for path in dict.fromkeys(paths) if path not in known]
    added = tuple(FileSetEntry(number=state.next_file_set + i, path=path) for i, path in enumerate(new))
    known |= {file_set.path: file_set.number for file_set in added}
    state = replace(state, file_sets=(*state.file_sets, *added), next_file_set=state.next_file_set + len(added))
    return state, tuple(known[path] for path in dict.fromkeys(paths))


@_folds(e.CheckpointAborted)
def _aborted(state: State, event: e.CheckpointAborted) -> State:
    checkpoint = state.checkpoint(event.id)
    if checkpoint is None:
        return state
    aborted = replace(
        checkpoint, status=ABORTED, ended_at=state.at, reason=event.reason, phase=event.phase, missing=event.missing,
        words=event.words, extra=_extra(checkpoint, event),
    )  # fmt: skip
    checkpoints = _bounded(_swap(state.checkpoints, checkpoint, aborted))
    return replace(state, checkpoints=checkpoints, counts=_count(state, "aborted"))


@_folds(e.CommitsConfirmed)
def _confirmed(state: State, event: e.CommitsConfirmed) -> State:
    found = state.checkpoint(event.id)
    if found is None:
        return state
    confirmed = replace(found, commits_confirmed=True, extra=_extra(found, event))
    return replace(state, checkpoints=_swap(state.checkpoints, found, confirmed))


@_folds(e.SavepointPublished)
def _published(state: State, event: e.SavepointPublished) -> State:
    found = state.checkpoint(event.id)
    if found is None:
        return state
    published = replace(found, published=True, extra=_extra(found, event))
    return replace(state, checkpoints=_swap(state.checkpoints, found, published))


@_folds(e.CheckpointsCondemned)
def _condemned(state: State, event: e.CheckpointsCondemned) -> State:
    claims = tuple(replace(one, status=CONDEMNED) if one.pointer in event.claims else one for one in state.claims)
    return replace(_marked(state, event.ids, CONDEMNED), claims=claims)


@_folds(e.CheckpointsForgotten)
def _forgotten(state: State, event: e.CheckpointsForgotten) -> State:
    state = _marked(state, event.ids, FORGOTTEN)
    state = replace(state, claims=tuple(one for one in state.claims if one.pointer not in event.claims))
    named = state.named()
    return replace(
        state,
        checkpoints=_bounded(
            tuple(replace(one, file_sets=()) if one.id in event.ids else one for one in state.checkpoints)
        ),
        file_sets=tuple(file_set for file_set in state.file_sets if file_set.number in named),
    )


def _marked(state: State, ids: tuple[int, ...], status: str) -> State:
    return replace(
        state, checkpoints=tuple(replace(one, status=status) if one.id in ids else one for one in state.checkpoints)
    )


@_folds(e.Resumed)
def _resumed(state: State, event: e.Resumed) -> State:
    return replace(state, suspended=None)
