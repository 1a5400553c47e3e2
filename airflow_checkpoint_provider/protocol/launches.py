"""The state machine's half about launches and attempts: who may start, adopt, replace, stop and end. Pure. Runs anywhere.

Between tries of one run the later wins; between runs, and between drivers of one launch, the living wins. So there are no
two that fence each other for ever.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import lifetime, refusals
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.state import CONDEMNED, Launch, Run, State
from airflow_checkpoint_provider.protocol.transitions import apply, launch_token


def fenced(state: State, epoch: int | None) -> Refusal | None:
    """Refuse a command of a driver whose attempt is over. Every command of a driver carries its epoch."""
    return refusals.over(state, epoch) if epoch is not None and state.over(epoch) else None


def suspended(state: State) -> Refusal | None:
    """Refuse whatever a job cannot do before it is resumed."""
    return refusals.suspended(state) if state.suspended is not None else None


# -- PlanLaunch --------------------------------------------------------------------------------------------------------


def plan_launch(state: State, command: c.PlanLaunch) -> Decision:
    """The rules in their order; the first that speaks decides."""
    for rule in (_known, _suspended, _other_owner, _earlier_try, _finished, _alive, _older_run):
        answer = rule(state, command)
        if answer is not None:
            return answer
    return _plan(state, command)


def is_clear(run: Run | None, command: c.PlanLaunch) -> bool:
    """Another generation than that of the run's newest launch or adopter: a person cleared the task; a retry keeps it."""
    return run is not None and run.generation != command.spec.token.generation


def _known(state: State, command: c.PlanLaunch) -> Decision | None:
    number = state.tokens.get(launch_token(command.spec.token, command.spec.try_number))
    if number is None:
        return None
    launch, attempt = state.launch(number), state.attempt_of(number)
    if attempt and attempt.how == "suspended":
        return None  # its task waited until the job was resumed, and launches what stands there now
    if number != state.current.get(command.spec.application):
        return refusals.superseded(state, command.spec.run)
    if attempt is None or (launch and launch.adopted_by == command.spec.try_number):
        return DoneAlready(number)
    # A try asks once. Its driver has been there: the DAG run was deleted and made again under its old name.
    return _finished(state, command) or refusals.superseded(state, command.spec.run)


def _suspended(state: State, command: c.PlanLaunch) -> Decision | None:
    return suspended(state)


def _other_owner(state: State, command: c.PlanLaunch) -> Decision | None:
    run = state.run(command.spec.run)
    if run is None or run.owner == command.spec.owner:
        return None
    return refusals.two_owners(state, run.owner, command)


def _earlier_try(state: State, command: c.PlanLaunch) -> Decision | None:
    run = state.run(command.spec.run)
    launch = state.launch(run.launch) if run else None
    if launch is None or launch.latest_try <= command.spec.try_number:
        return None
    return refusals.superseded(state, command.spec.run, launch)


def _finished(state: State, command: c.PlanLaunch) -> Decision | None:
    run = state.run(command.spec.run)
    if run is None or run.how != "finished" or is_clear(run, command):
        return None
    return refusals.already_finished(run, command)


def _alive(state: State, command: c.PlanLaunch) -> Decision | None:
    launch = state.current_launch(command.spec.application)
    attempt = state.attempt_of(launch.number) if launch else None
    if launch is None or not command.seen_alive or (attempt and attempt.how):
        return None
    if launch.spec.run != command.spec.run or command.alone:
        return refusals.already_running(state, launch)
    if launch.stop:
        return refusals.stopping(state, launch)
    restarts = command.on_clear == "restart" and is_clear(state.run(command.spec.run), command)
    if not command.durable or restarts:
        return None
    return (e.LaunchAdopted(launch=launch.number, token=command.spec.token, try_number=command.spec.try_number),)


def _older_run(state: State, command: c.PlanLaunch) -> Decision | None:
    """Two days in the wrong order would be counted twice or skipped unseen; runs of one scope key do the same work again.
    A script's run is the newest, whatever clocks say."""
    if command.alone or state.scope:
        return None
    inside = [run for run in state.runs if run.inside == state.branch.number]
    newest = max(inside, key=lambda run: run.position, default=None)
    known = state.run(command.spec.run)
    position = known.position if known else command.spec.run_after or command.spec.started_at
    dropped = known is None and position <= state.dropped_run_after
    if not dropped and (newest is None or newest.key == command.spec.run or position > newest.position):
        return None
    newer = [run.key for run in inside if run.position >= position and run.key != command.spec.run]
    return refusals.older_run(state, command, newer, _newest_before(state, position))


def _newest_before(state: State, position: str) -> int | None:
    """The newest retained checkpoint of a run before ``position``."""
    launches = {attempt.epoch: state.launch(attempt.launch) for attempt in state.attempts}
    runs = {epoch: state.run(launch.spec.run) for epoch, launch in launches.items() if launch}
    positions = {one.id: run.position for one in state.retained if (run := runs.get(one.epochs[0]))}
    return max((number for number, at in positions.items() if at < position), default=None)


def being_deleted(state: State, base: e.Point | None) -> Refusal | None:
    """A claimed savepoint that was condemned is as good as gone, though its files may still be there."""
    pointer = base.pointer if base else None
    if not any(one.pointer == pointer and one.status == CONDEMNED for one in state.claims):
        return None
    return refusals.being_deleted(state, pointer)


def _plan(state: State, command: c.PlanLaunch) -> Decision:
    opened = (_opened(state, command),) if state.closed or not state.incarnation else ()
    branch = _branch(state, command)
    then = state
    for event in (*opened, *branch):
        then = apply(then, event)
    point = then.restore_point(command.spec.application)
    if missing := being_deleted(state, point) or _missing_state(state, command, point):
        return missing
    launch = e.LaunchPlanned(
        launch=state.next_launch, spec=command.spec, restore_point=point
    )  # fmt: skip
    return (*opened, *branch, launch, *settled(state, command.spec.application, "attempt replaced"))


def _opened(state: State, command: c.PlanLaunch) -> e.HistoryOpened:
    """One that was closed keeps its incarnation, and counts on."""
    return e.HistoryOpened(
        incarnation=state.incarnation or command.incarnation,
        job=command.job,
        scope=command.scope,
        item=command.item,
        why=command.spec.owner,
    )


def _branch(state: State, command: c.PlanLaunch) -> tuple[e.Event, ...]:
    """``restore`` says where a run starts; a clear of a finished run starts again from there."""
    run = state.run(command.spec.run)
    if run is None:
        if command.spec.restore == "latest":
            return _anew(state, command)
        opened = _branch_opened(state, command, command.base, f"restore={command.spec.restore}")
        return (replace(opened, above=command.above),)
    launch = state.launch(run.launch)
    left = launch is not None and launch.branch != state.branch.number
    again = is_clear(run, command) and (run.how == "finished" or command.on_clear == "restart")
    if not again or command.on_clear == "continue" or left:
        return ()
    opened = _branch_opened(state, command, run.started_from, "cleared: starts again from where the run started")
    return (replace(opened, rename=run.rename),)


def _anew(state: State, command: c.PlanLaunch) -> tuple[e.Event, ...]:
    """Where the runs of one key went back and then finished, their state went with them: the next run does not start from what
    they had gone back to."""
    base = state.branch.base
    own = {one.id for one in state.retained} | {one.pointer for one in state.claims}
    if base is None or not lifetime.ended_for_good(state) or state.restore_point(command.spec.application) != base:
        return ()
    if (base.pointer or base.id) in own:
        return ()
    return (_branch_opened(state, command, None, "the run before it finished, and its state went with it"),)


def _branch_opened(state: State, command: c.PlanLaunch, base: e.Point | None, reason: str) -> e.BranchOpened:
    return e.BranchOpened(
        branch=state.branch.number + 1,
        application=command.spec.application,
        base=base,
        token=command.spec.token,
        by=command.spec.owner,
        reason=reason,
    )


def _missing_state(state: State, command: c.PlanLaunch, point: e.Point | None) -> Refusal | None:
    """Going on was asked for, and there is nothing to go on from. The point from which a run *started* is not its state."""
    if point and point.id is not None and point.id not in {one.id for one in state.retained}:
        return refusals.start_deleted(command, point)
    run = state.run(command.spec.run)
    went = run and run.how == "finished" and run.inside == state.branch.number and point == state.branch.base
    if command.on_clear == "continue" and went:
        return refusals.state_finished(command)
    if command.require_state and point is None:
        return refusals.nothing_to_start_from(command)
    return None


def settled(state: State, application: str, reason: str) -> tuple[e.CheckpointAborted, ...]:
    """Whoever replaces or ends an attempt settles what it left pending."""
    return tuple(
        e.CheckpointAborted(id=one.id, reason=reason, phase="acknowledge", missing=one.plan)
        for one in state.pending
        if application in one.plan
    )


# -- attempts ----------------------------------------------------------------------------------------------------------


def start_attempt(state: State, command: c.StartAttempt) -> Decision:
    mine = next((one for one in state.attempts if one.driver == command.driver), None)
    if mine:
        return fenced(state, mine.epoch) or DoneAlready(mine.epoch)
    launch = state.current_launch(command.application)
    asked = launch_token(command.token, command.try_number)
    if launch is None or launch_token(launch.spec.token, launch.spec.try_number) != asked:
        return refusals.launch_replaced(state)
    if launch.stop:
        return refusals.launch_stopped(state, launch)
    if waits := suspended(state):
        return waits
    before = state.attempt_of(launch.number)
    if before and before.how in ("finished", "cancelled", "suspended"):
        return refusals.launch_ended(state, before.epoch, before.how)
    if before and before.how is None and command.seen_alive:
        return refusals.launch_alive(state, before.epoch)
    if gone := _went_meanwhile(state, launch):
        return gone
    return (_attempt_started(state, command, launch), *settled(state, command.application, "attempt replaced"))


def _went_meanwhile(state: State, launch: Launch) -> Refusal | None:
    """A driver that came so late that its run had been given up, and its state deleted, does not start from nothing."""
    point = state.restore_point(launch.spec.application)
    if launch.restore_point is not None and point is None:
        return refusals.restore_point_deleted(state, launch)
    return being_deleted(state, point)


def _attempt_started(state: State, command: c.StartAttempt, launch: Launch) -> e.AttemptStarted:
    return e.AttemptStarted(
        epoch=state.last_epoch + 1, launch=launch.number, driver=command.driver,
        restore_point=state.restore_point(command.application), application_digest=command.application_digest,
        versions=command.versions, checkpointing=command.checkpointing,
    )  # fmt: skip


def start_alone(state: State, command: c.StartAlone) -> Decision:
    """Launch and attempt in one entry: a driver without Airflow."""
    mine = next((one for one in state.attempts if one.driver == command.start.driver), None)
    if mine:
        return fenced(state, mine.epoch) or DoneAlready(mine.epoch)
    planned = plan_launch(state, command.plan)
    if not isinstance(planned, tuple):
        return planned if isinstance(planned, Refusal) else refusals.superseded(state, command.plan.spec.run)
    then = state
    for event in planned:
        then = apply(then, event)
    started = start_attempt(then, command.start)
    return (*planned, *started) if isinstance(started, tuple) else started


def request_stop(state: State, command: c.RequestStop) -> Decision:
    launch = state.launch(command.launch)
    if launch and launch.stop:
        return DoneAlready(launch.number)
    if launch is None or launch.number not in state.current.values() or launch.latest_try > command.try_number:
        return refusals.launch_not_ours(state, command.launch)
    return (e.StopRequested(launch=command.launch, by=command.by, reason=command.reason),)


def end_attempt(state: State, command: c.EndAttempt) -> Decision:
    attempt = state.attempt(command.epoch)
    if attempt and attempt.how == command.how:
        return DoneAlready(command.epoch)
    failed_after = (
        attempt is not None
        and attempt.how == "finished"
        and command.from_task
        and command.how == "failed"
        and state.current.get(attempt.application) == attempt.launch
    )
    if state.over(command.epoch) and not failed_after:
        return refusals.over(state, command.epoch)
    ended = e.AttemptEnded(epoch=command.epoch, how=command.how, exit_code=command.exit_code, said_by=command.said_by)
    left = tuple(
        e.CheckpointAborted(id=one.id, reason=f"attempt {command.how}", phase="acknowledge", missing=one.plan)
        for one in state.pending
        if command.epoch in one.epochs
    )
    return (ended, *left)
