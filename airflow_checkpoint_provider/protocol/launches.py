"""Decisions about launches and attempts: which may start, adopt, replace, stop and end. Pure. Runs anywhere.

Between tries of one run, the later try wins. Between runs, and between drivers of one launch, the living driver wins.
So two of them never fence each other in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import refusals
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, Checkpoint
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.kinds import ACKNOWLEDGE, REPLACED
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch, Run
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import apply


def fenced(state: State, epoch: int | None) -> Refusal | None:
    """Refuse a command of a driver whose attempt is over. Every command of a driver carries its epoch."""
    return refusals.over(state, epoch) if epoch is not None and state.over(epoch) else None


def suspended(state: State) -> Refusal | None:
    """Refuse a command that a suspended job cannot serve before it is resumed."""
    return refusals.suspended(state) if state.suspended is not None else None


# -- PlanLaunch --------------------------------------------------------------------------------------------------------


def plan_launch(state: State, command: c.PlanLaunch) -> Decision:
    """Decide about a launch. The first rule that has an answer decides."""
    run = state.run(command.spec.run)
    for rule in (_known, _suspended, _other_owner, _other_index, _earlier_try, _finished, _alive, _older_run):
        answer = rule(state, run, command)
        if answer is not None:
            return answer
    return _plan(state, run, command)


def is_clear(run: Run | None, command: c.PlanLaunch) -> bool:
    """Return whether a person cleared the task since the run's newest launch. A clear changes the generation, a retry keeps it.

    Each map index has its own generation. If the item has moved, the index counts that launched it: was that cleared since?
    """
    if run is not None and _moved(run, command):
        return command.other is not None and command.other.cleared
    return run is not None and run.generation != command.spec.token.generation


def _moved(run: Run, command: c.PlanLaunch) -> bool:
    """Return whether an item's newest launch in the run came from another map index. Of an unmapped task none is known."""
    return None not in (run.map_index, command.spec.map_index) and run.map_index != command.spec.map_index


def _known(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    number = state.tokens.get(command.spec.token.launch_text(command.spec.try_number))
    if number is None:
        return None
    launch, attempt = state.launch(number), state.attempt_of(number)
    if attempt and attempt.outcome == "suspended":
        return None  # its task waited until the job was resumed, and submits the application as it is now
    elsewhere = launch is not None and launch.map_index != command.spec.map_index  # another instance has adopted it
    if number != state.current_launches.get(command.spec.application) or elsewhere:
        return refusals.superseded(state, command.spec.run)
    if attempt is None or (launch and launch.adopted_by == command.spec.try_number):
        return DoneAlready(number)
    # A try asks once. Its driver has already run: the DAG run was deleted and created again under its old name.
    return _finished(state, run, command) or refusals.superseded(state, command.spec.run)


def _suspended(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    return suspended(state)


def _other_owner(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    if run is None or owns(state, run, command.spec.owner, command.spec.token):
        return None
    return refusals.two_owners(state, run, command)


def owns(state: State, run: Run, owner: str, token: e.Token) -> bool:
    """Return whether the task ``owner``, which asks with ``token``, owns a run. The text alone does not say it: see ``Token.owner``."""
    launch = state.launch(run.launch)
    return run.owner == owner and (launch is None or launch.spec.token.dag == token.dag)


def _other_index(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    """Refuse an instance while another one has its item. The sender looks at the index of the newest launch for each state."""
    if run is None or not _moved(run, command):
        return None
    if command.other is None or command.other.index != run.map_index or command.other.holds:
        return refusals.one_item(state, run, command)
    return None


def _earlier_try(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    launch = state.launch(run.launch) if run else None
    if launch is None or run is None or _moved(run, command) or launch.latest_try <= command.spec.try_number:
        return None
    return refusals.superseded(state, command.spec.run, launch)


def _finished(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    if run is None or run.outcome != "finished" or is_clear(run, command):
        return None
    return refusals.already_finished(run, command)


def _alive(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    launch = state.current_launch(command.spec.application)
    attempt = state.attempt_of(launch.number) if launch else None
    if launch is None or not command.seen_alive or (attempt and attempt.outcome):
        return None
    if launch.spec.run != command.spec.run or command.alone:
        return refusals.already_running(state, launch)
    if launch.stop:
        return refusals.stopping(state, launch)
    restarts = command.on_clear == "restart" and is_clear(run, command)
    if not command.durable or restarts:
        return None
    spec = command.spec
    adopted = e.LaunchAdopted(
        launch=launch.number, token=spec.token, try_number=spec.try_number, map_index=spec.map_index
    )
    return (adopted,)


def _older_run(state: State, run: Run | None, command: c.PlanLaunch) -> Decision | None:
    """Refuse a run that is older than the runs in a shared state: its rows would be counted twice or skipped.

    Runs with a history of their own do the same work again. A script's run is always the newest, whatever its clock says.
    """
    if command.alone or state.of_one_run:
        return None
    runs = [listed for listed in state.runs if listed.branch == state.branch.number]
    newest = max(runs, key=lambda listed: listed.order, default=None)
    order = run.order if run else command.spec.run_after or command.spec.started_at
    dropped = run is None and order <= state.evicted_run_after
    if not dropped and (newest is None or newest.key == command.spec.run or order > newest.order):
        return None
    newer = [listed.key for listed in runs if listed.order >= order and listed.key != command.spec.run]
    return refusals.older_run(state, command, newer, _newest_before(state, order))


def _newest_before(state: State, order: str) -> int | None:
    """Return the newest retained checkpoint of a run before the one of ``order``."""
    orders = {checkpoint.id: run.order for checkpoint in state.retained if (run := state.run_of(checkpoint.epochs[0]))}
    return max((number for number, at in orders.items() if at < order), default=None)


def being_deleted(state: State, base: e.Point | None) -> Refusal | None:
    """Refuse a claimed savepoint that was condemned as a base, though its files may still exist."""
    pointer = base.pointer if base else None
    if not any(claim.pointer == pointer and claim.status == CONDEMNED for claim in state.claims):
        return None
    return refusals.being_deleted(state, pointer)


def _plan(state: State, run: Run | None, command: c.PlanLaunch) -> Decision:
    opened = (_opened(state, command),) if state.closed or not state.incarnation else ()
    branch = _branch(state, run, command)
    planned = state
    for event in (*opened, *branch):
        planned = apply(planned, event)
    point = planned.restore_point(command.spec.application)
    if missing := being_deleted(state, point) or _missing_state(state, run, command, point):
        return missing
    launch = e.LaunchPlanned(launch=state.next_launch, spec=command.spec, restore_point=point)
    return (*opened, *branch, launch, *abort_replaced(state, command.spec.application))


def _opened(state: State, command: c.PlanLaunch) -> e.HistoryOpened:
    """Return the event that opens a history. A history that was closed keeps its incarnation and its counters."""
    return e.HistoryOpened(
        incarnation=state.incarnation or command.incarnation,
        job=command.job,
        scope=command.scope,
        item=command.item,
        by=command.spec.owner,
    )


def _branch(state: State, run: Run | None, command: c.PlanLaunch) -> tuple[e.Event, ...]:
    """Return the event that opens a branch, if ``restore`` or a clear of a finished run asks for one."""
    if run is None:
        if command.spec.restore == "latest" or _is_opened(state, command.base):
            return ()
        opened = _branch_opened(state, command, command.base, f"restore={command.spec.restore}")
        return (replace(opened, id_floor=command.id_floor, rewinds=opened.branch),)
    launch = state.launch(run.launch)
    elsewhere = launch is not None and launch.branch != state.branch.number
    restarts = is_clear(run, command) and (run.outcome == "finished" or command.on_clear == "restart")
    if not restarts or command.on_clear == "continue" or elsewhere:
        return ()
    opened = _branch_opened(state, command, run.started_from, "cleared: starts again from where the run started")
    rewinds = state.branch.rewinds  # queries that were to go back, and were not started since, still are
    allowed = state.branch.rewind_sink and opened.base == state.branch.base
    return (replace(opened, rename=run.rename, rewinds=rewinds, rewind_sink=allowed),)


def _is_opened(state: State, base: e.Point | None) -> bool:
    """Return whether a restore has opened a branch at this checkpoint of another history, and nothing was launched on it yet. That restore
    also set the names of states, and whether sinks may go back.
    """
    launched = any(launch.branch == state.branch.number for launch in state.launches)
    return base is not None and base.pointer is not None and base == state.branch.base and not launched


def _branch_opened(state: State, command: c.PlanLaunch, base: e.Point | None, reason: str) -> e.BranchOpened:
    return e.BranchOpened(
        branch=state.branch.number + 1,
        application=command.spec.application,
        base=base,
        token=command.spec.token,
        by=command.spec.owner,
        reason=reason,
    )


def _missing_state(state: State, run: Run | None, command: c.PlanLaunch, point: e.Point | None) -> Refusal | None:
    """Refuse a run that requires state when there is none. The restore point of a run is not its own state."""
    if point and point.id is not None and point.id not in {checkpoint.id for checkpoint in state.retained}:
        return refusals.start_deleted(command, point)
    deleted = run and run.outcome == "finished" and run.branch == state.branch.number and point == state.branch.base
    if command.on_clear == "continue" and deleted:
        return refusals.state_finished(command)
    if command.require_state and point is None:
        return refusals.nothing_to_start_from(command)
    return None


def abort_replaced(state: State, application: str) -> tuple[e.CheckpointAborted, ...]:
    """Return the events that abort the pending checkpoints of an application whose attempt is replaced."""
    pending = (checkpoint for checkpoint in state.pending if application in checkpoint.plan)
    return abort_all(pending, REPLACED)


def abort_all(pending: Iterable[Checkpoint], reason: str, details: str = "") -> tuple[e.CheckpointAborted, ...]:
    """Return the events that abort these pending checkpoints, because no driver will acknowledge them any more."""
    return tuple(
        e.CheckpointAborted(
            id=checkpoint.id, reason=reason, phase=ACKNOWLEDGE, missing=checkpoint.plan, details=details
        )
        for checkpoint in pending
    )


# -- attempts ----------------------------------------------------------------------------------------------------------


def start_attempt(state: State, command: c.StartAttempt) -> Decision:
    """Decide whether a driver of the current launch starts its attempt."""
    if known := _started_before(state, command.driver):
        return known
    launch = state.current_launch(command.application)
    wanted = command.token.launch_text(command.try_number)
    if launch is None or launch.spec.token.launch_text(launch.spec.try_number) != wanted:
        return refusals.launch_replaced(state)
    if launch.stop:
        return refusals.launch_stopped(state, launch)
    if refusal := suspended(state):
        return refusal
    previous = state.attempt_of(launch.number)
    if previous and previous.outcome in ("finished", "cancelled", "suspended"):
        return refusals.launch_ended(state, previous.epoch, previous.outcome)
    if previous and previous.outcome is None and command.seen_alive:
        return refusals.launch_alive(state, previous.epoch)
    if refusal := _restore_point_gone(state, launch):
        return refusal
    return (_attempt_started(state, command, launch), *abort_replaced(state, command.application))


def _started_before(state: State, driver: str) -> Decision | None:
    """Return the answer to a driver that has started its attempt before, or None."""
    attempt = next((attempt for attempt in state.attempts if attempt.driver == driver), None)
    return (fenced(state, attempt.epoch) or DoneAlready(attempt.epoch)) if attempt else None


def _restore_point_gone(state: State, launch: Launch) -> Refusal | None:
    """Refuse a driver that starts after its run was given up and its state deleted. It must not start from nothing."""
    point = state.restore_point(launch.spec.application)
    if launch.restore_point is not None and point is None:
        return refusals.restore_point_deleted(state, launch)
    return being_deleted(state, point)


def _attempt_started(state: State, command: c.StartAttempt, launch: Launch) -> e.AttemptStarted:
    return e.AttemptStarted(
        epoch=state.last_epoch + 1,
        launch=launch.number,
        driver=command.driver,
        restore_point=state.restore_point(command.application),
        application_digest=command.application_digest,
        application_parts=command.application_parts,
        versions=command.versions,
        checkpointing=command.checkpointing,
    )


def start_alone(state: State, command: c.StartAlone) -> Decision:
    """Decide the launch and the attempt of a driver without Airflow, in one entry."""
    if known := _started_before(state, command.start.driver):
        return known
    planned = plan_launch(state, command.plan)
    if not isinstance(planned, tuple):
        return planned if isinstance(planned, Refusal) else refusals.superseded(state, command.plan.spec.run)
    after_plan = state
    for event in planned:
        after_plan = apply(after_plan, event)
    started = start_attempt(after_plan, command.start)
    return (*planned, *started) if isinstance(started, tuple) else started


def request_stop(state: State, command: c.RequestStop) -> Decision:
    """Decide whether a launch is asked to stop. Only its latest try may ask."""
    launch = state.launch(command.launch)
    if launch and launch.stop:
        return DoneAlready(launch.number)
    if not _is_latest(state, launch, command):
        return refusals.launch_not_ours(state, command.launch)
    return (e.StopRequested(launch=command.launch, by=command.by, reason=command.reason),)


def end_launch(state: State, command: c.EndLaunch) -> Decision:
    """Decide whether to record the end of a driver that never attached.

    No decision depends on this record: a driver that attaches later, or a later try that adopts the launch, is not affected.
    """
    launch = state.launch(command.launch)
    if launch and launch.outcome:
        return DoneAlready(launch.number)
    if attempt := state.attempt_of(command.launch):
        return refusals.launch_attached(state, attempt.epoch)
    if not _is_latest(state, launch, command):
        return refusals.launch_not_ours(state, command.launch)
    return (
        e.LaunchEnded(launch=command.launch, outcome=command.outcome, exit_code=command.exit_code, cause=command.cause),
    )


def _is_latest(state: State, launch: Launch | None, command: c.RequestStop | c.EndLaunch) -> bool:
    """Return whether a launch is current, and neither a later try nor another map index has adopted it."""
    if launch is None or launch.number not in state.current_launches.values():
        return False
    return launch.map_index == command.map_index and launch.latest_try <= command.try_number


def end_attempt(state: State, command: c.EndAttempt) -> Decision:
    """Decide how an attempt ended. Only its task may turn *finished* into *failed*."""
    attempt = state.attempt(command.epoch)
    if attempt and attempt.outcome == command.outcome:
        return _cause_added(state, attempt, command) or DoneAlready(command.epoch)
    failed_after = (
        attempt is not None
        and attempt.outcome == "finished"
        and command.from_task
        and command.outcome == "failed"
        and state.current_launches.get(attempt.application) == attempt.launch
    )
    if state.over(command.epoch) and not failed_after:
        return refusals.over(state, command.epoch)
    ended = e.AttemptEnded(
        epoch=command.epoch,
        outcome=command.outcome,
        exit_code=command.exit_code,
        reported_by=command.reported_by,
        cause=command.cause,
    )
    pending = (checkpoint for checkpoint in state.pending if command.epoch in checkpoint.epochs)
    return (ended, *abort_all(pending, f"attempt {command.outcome}"))


def _cause_added(state: State, attempt: AttemptRecord, command: c.EndAttempt) -> tuple[e.AttemptEnded, ...]:
    """Return the entry that adds the cause of its death to an attempt that has ended without one; empty if there is nothing to add.

    A driver that lost its JVM ends in order, and only its task sees the exit code of the JVM. What the driver wrote stays.
    """
    current = state.current_launches.get(attempt.application) == attempt.launch
    if not command.cause or not command.from_task or not current or attempt.ending is None or attempt.cause:
        return ()
    was = attempt.ending
    return (
        e.AttemptEnded(
            epoch=attempt.epoch,
            outcome=was.outcome,
            exit_code=was.exit_code,
            reported_by=was.reported_by,
            cause=command.cause,
        ),
    )
