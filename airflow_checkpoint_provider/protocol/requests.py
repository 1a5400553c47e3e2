"""The queue of requests for checkpoints and its decider, by Flink's rules. Pure. Runs anywhere.

A request that may not be triggered yet waits in the journal. The decider runs in every entry that may have made room.
So nobody has to ask again, and a queued request is triggered at most once.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches, refusals, wording
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, Checkpoint, QueuedRequest
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.keys import savepoint_name
from airflow_checkpoint_provider.protocol.kinds import BARRIER, PERIODIC, is_savepoint
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import apply

LONGEST_QUEUE = 1000
MOST_PENDING = 100  # savepoints and gated ones included: one entry must be able to abort them all
AT_ONCE = 16  # requests that one entry may take from the queue
PAUSE = "the pause between two checkpoints"


def trigger(state: State, command: c.Trigger) -> Decision:
    """Decide about a request: it is known, refused, triggered, or queued."""
    request = command.request
    if known := _known(state, request):
        return known
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if suspended := launches.suspended(state):
        return suspended
    running = state.running(request.application)
    launch = state.launch(running.launch) if running else None
    if running is None or (launch and command.run not in (None, launch.spec.run)):
        return _not_running(state, command.run, request.application)
    if launch and launch.stop and (command.epoch is None or request.origin != BARRIER):
        return refusals.driver_stops(state, launch)
    queued = QueuedRequest(request=request, epoch=running.epoch)
    if request.gated and len(state.pending) >= MOST_PENDING:
        return _too_many(state)
    if request.gated or (request.origin == BARRIER and not ungated(state)):
        # A gated checkpoint waits for its finalize, not for its turn. A barrier happens now and cannot wait.
        return (_triggered(state, queued),)
    if request.origin == BARRIER:
        ahead = ungated(state)[0]
        return Refusal(errors.Busy(f"{state.job}: chk-{ahead.id} is pending and waits for this barrier; serve it"))
    return _admitted(state, queued, command.pause_left_s)


def ungated(state: State) -> tuple[Checkpoint, ...]:
    """Return the pending checkpoints that wait only for a barrier. Gated ones wait for a finalize; savepoints come in addition."""
    return tuple(pending for pending in state.pending if not pending.request.gated and not pending.savepoint)


def _known(state: State, request: e.Request) -> Decision | None:
    """Return the answer to a request that was sent before, or None.

    A later try of its task asks again after its checkpoint was aborted or dropped.
    """
    if turn_in_queue(state, request.token):
        return DoneAlready(0)
    dropped = next((dropped for dropped in reversed(state.dropped_requests) if dropped.token == request.token), None)
    if dropped and request.try_number <= dropped.try_number:
        return Refusal(
            errors.RequestWasDropped(f"{state.job}: the request was dropped: {dropped.reason}", reason=dropped.reason)
        )
    number = state.requests.get(request.token)
    checkpoint = state.checkpoint(number)
    repeated = (
        checkpoint is not None and checkpoint.status == ABORTED and request.try_number > checkpoint.request.try_number
    )
    if number is None or repeated or dropped:
        return None
    return DoneAlready(number)  # a request is remembered for longer than its checkpoint


def _not_running(state: State, run: str | None, application: str) -> Refusal:
    """Refuse a request without a driver. A run that has finished will not start another driver; any other run may."""
    launch = state.starting(application)
    if launch and run in (None, launch.spec.run):
        return Refusal(
            errors.NotAttached(
                f"{wording.not_attached(state, launch)}: no driver is running that could take a checkpoint. Ask again when it has attached;"
                " if its task has ended, start the job again"
            )
        )
    newest = state.run(run) if run is not None else state.runs[-1] if state.of_one_run and state.runs else None
    if newest is not None and newest.outcome == "finished":
        return Refusal(
            errors.RunFinished(
                f"{state.job}, run {newest.key}: it finished at {newest.ended_at}, and nothing runs that could take a checkpoint",
                run=newest.key,
            )
        )
    return Refusal(
        errors.NotRunning(
            f"{state.job or 'this job'}{f', run {run}' if run else ''}: no driver is running that could take a checkpoint;"
            " start the job first"
        )
    )


def _triggered(state: State, queued: QueuedRequest) -> e.CheckpointTriggered:
    request, target = queued.request, None
    if _is_savepoint(queued):
        target = f"{request.folder}/{savepoint_name(state.job, state.next_id, request.nonce)}"
    return e.CheckpointTriggered(
        id=state.next_id,
        epochs=(queued.epoch,),
        branch=state.branch.number,
        plan=(request.application,),
        request=request,
        timeout_s=state.config.timeout_s if request.timeout_s is None else request.timeout_s,
        target=target,
        queued_at=queued.queued_at,
    )


# -- the queue ---------------------------------------------------------------------------------------------------------


def in_order(queue: tuple[QueuedRequest, ...]) -> tuple[QueuedRequest, ...]:
    """Return the queue in the order of service: savepoints, then requests of users, then periodic ones; within each, the
    oldest first.
    """
    return tuple(sorted(queue, key=lambda queued: (not _is_savepoint(queued), _is_periodic(queued))))


def stop_requested(state: State) -> Checkpoint | None:
    """Return the pending savepoint with which the job is to stop; None if there is none."""
    return next((savepoint for savepoint in state.pending if savepoint.suspends), None)


def turn_in_queue(state: State, token: str) -> tuple[int, int] | None:
    """Return the place of a request in the queue, 1 for the next, and the length of the queue; None if it is not queued."""
    waiting = [queued.request.token for queued in in_order(state.queue)]
    return (waiting.index(token) + 1, len(waiting)) if token in waiting else None


def may_run(state: State, queued: QueuedRequest) -> bool:
    """Return whether the first request of the queue is triggered now.

    Checkpoints that are being deleted do not count: only the driver knows whether a deletion still runs or has failed. Its timer waits for
    a deletion that runs.
    """
    if _is_savepoint(queued):
        return len(state.pending) < MOST_PENDING
    return sum(not pending.request.gated for pending in state.pending) < state.config.max_concurrent


def _admitted(state: State, candidate: QueuedRequest, pause_left_s: float) -> Decision:
    """Decide whether a request is triggered now, queued, or refused."""
    if state.queue and len(state.queue) >= LONGEST_QUEUE and not _is_periodic(in_order(state.queue)[-1]):
        return _too_many(state)
    queue = in_order((*state.queue, candidate))
    if queue[0] is candidate and may_run(state, candidate):
        if _is_paced(candidate) and pause_left_s > 0:
            return Refusal(
                errors.MinPause(f"{state.job}: the pause between two checkpoints lasts {pause_left_s:g} s longer")
            )
        return (_triggered(state, candidate),)
    last, queue_event = queue[-1], e.RequestQueued(request=candidate.request, epoch=candidate.epoch)
    if len(queue) <= LONGEST_QUEUE:
        return (queue_event,)
    if last is candidate:
        return _too_many(state)
    return (e.RequestDropped(token=last.request.token, reason="too many requests"), queue_event)


def _too_many(state: State) -> Refusal:
    waiting = len(state.queue) + len(state.pending)
    return Refusal(errors.TooManyRequests(f"{state.job}: {waiting} requests wait already; ask again later"))


def serve_queue(state: State) -> Iterator[e.Event]:
    """Yield the events of the queue after an entry's other events, at most ``AT_ONCE`` triggers. The next entry continues.

    A periodic request is dropped here if a pause is configured: no entry knows how long ago the last checkpoint completed. The
    timer, which knows, asks again.
    """
    if state.unserved():
        dropped = e.QueueDropped(reason=_unserved_because(state))
        state = apply(state, dropped)
        yield dropped
    for _ in range(AT_ONCE):
        if not state.queue or not may_run(state, first := in_order(state.queue)[0]):
            return
        paused = _is_paced(first) and state.config.min_pause_s > 0
        event = e.RequestDropped(token=first.request.token, reason=PAUSE) if paused else _triggered(state, first)
        state = apply(state, event)
        yield event


def _unserved_because(state: State) -> str:
    if state.suspended:
        return "the job was suspended"
    over = all(state.over(queued.epoch) for queued in state.unserved())
    return "its attempt is over" if over else "its driver was told to stop"


def _is_savepoint(queued: QueuedRequest) -> bool:
    return is_savepoint(queued.request.kind)


def _is_periodic(queued: QueuedRequest) -> bool:
    return queued.request.origin == PERIODIC


def _is_paced(queued: QueuedRequest) -> bool:
    """Return whether the pause between two checkpoints holds for it: as in Flink, not for a savepoint."""
    return _is_periodic(queued) and not _is_savepoint(queued)
