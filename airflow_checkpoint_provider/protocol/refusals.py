"""Refusals of launches and attempts, in sentences: cause, effect, what to do next. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.commands import PlanLaunch, Refusal
from airflow_checkpoint_provider.protocol.launch_records import Launch, Run
from airflow_checkpoint_provider.protocol.state import State


def over(state: State, epoch: int) -> Refusal:
    """Refuse a command of an attempt that is over."""
    attempt = state.attempt(epoch)
    application = attempt.application if attempt else ""
    newer, launch = state.running(application), state.current_launch(application)
    why = "a restore opened a new branch"
    if attempt and attempt.outcome:
        why = f"it ended {attempt.outcome}"
    elif newer:
        why = f"attempt {newer.epoch} replaced it"
    elif launch:
        why = f"launch {launch.number} (try {launch.latest_try}) replaced it"
    return Refusal(errors.Fenced(f"attempt {epoch} of {state.job} is over: {why}", epoch=epoch))


def suspended(state: State) -> Refusal:
    """Refuse a command that a suspended job cannot serve."""
    resume = wording.restore(state, "latest")
    return Refusal(
        errors.JobSuspended(f"{state.job} is suspended {wording.suspension(state)}; to resume it: `{resume}`")
    )


def superseded(state: State, run: str, launch: Launch | None = None) -> Refusal:
    """Refuse an earlier try; ``launch`` is that of the later try, if it is known."""
    detail = {"latest_try": launch.latest_try} if launch else {}
    return Refusal(errors.Superseded(wording.superseded(state, run, launch), run=run, **detail))


def two_owners(state: State, run: Run, command: PlanLaunch) -> Refusal:
    """Refuse a task that uses the job id of the task that owns ``run``."""
    spec, launch, owners = command.spec, state.launch(run.launch), (run.owner, command.spec.owner)
    if launch is not None and run.owner == spec.owner:  # the same text for two tasks
        first, second = launch.spec.token, spec.token
        owners = f"{first.task} of DAG {first.dag}", f"{second.task} of DAG {second.dag}"
    text = f"tasks {' and '.join(owners)} share job id {state.job!r} in run {spec.run}; give one of them another job_id"
    return Refusal(errors.TwoOwners(text, owners=owners))


def one_item(state: State, run: Run, command: PlanLaunch) -> Refusal:
    """Refuse an instance of a mapped task whose item another instance has."""
    spec = command.spec
    text = (
        f"{wording.title(state, spec.run)}: map index {run.map_index} has this item, and map index {spec.map_index} is asked to run it, too."
        " Nothing was submitted. If the list holds it twice, take one out. If the list was changed: this is tried again, and goes on as soon"
        f" as index {run.map_index} has begun with another item; so clear that one, too"
    )
    return Refusal(errors.OneItemTwice(text, indexes=(run.map_index, spec.map_index)))


def already_finished(run: Run, command: PlanLaunch) -> Refusal:
    """Refuse to submit a run that has finished."""
    text = f"{command.job}, run {run.key}: finished at {run.ended_at}; nothing to submit"
    return Refusal(errors.AlreadyFinished(text, run=run.key))


def already_running(state: State, launch: Launch) -> Refusal:
    """Refuse a run while another one is alive."""
    which = f"launch {launch.number}, try {launch.latest_try}"
    ends, token = f"`{wording.stop(state)}`, which says how to resume the job", launch.spec.token
    if token.dag:
        ends = (
            f"mark its task {token.dag}.{token.task} as failed, which ends its driver. If that task has ended or was deleted, it does not follow"
            f" the driver any more: clear it, or type {ends}"
        )
    text = f"{state.job}: run {launch.spec.run} is alive ({which}). Wait for it, or {ends}"
    return Refusal(errors.JobAlreadyRunning(text, run=launch.spec.run, launch=launch.number))


def stopping(state: State, launch: Launch) -> Refusal:
    """Refuse a launch while the driver before it stops."""
    text = f"{state.job}: the driver of launch {launch.number} was asked to stop and has not ended yet"
    return Refusal(errors.Stopping(text))


def older_run(state: State, command: PlanLaunch, newer: Sequence[str], before: int | None) -> Refusal:
    """Refuse a run that is older than the runs ``newer`` in the state; ``before`` is the newest checkpoint before it."""
    back = "There is no checkpoint from before it to go back to"
    if before is not None:
        restore = wording.restore(state, f"chk-{before}")
        back = f"To go back to the newest checkpoint before it: `{restore}`; then clear this run and all after it"
    backfill = ". Runs of a backfill with --max-active-runs 1 come in the order of their dates"
    text = (
        f"{state.job}: run {command.spec.run} is older than the runs in the state"
        f" ({', '.join(newer) or 'runs no longer listed'}); its results would be added to theirs."
        " To compute it without this state, use a task with another job_id and restore=<pointer>."
        f" {back}{'' if state.run(command.spec.run) else backfill}"
    )
    return Refusal(errors.RunIsOlder(text, newer=list(newer), before=before))


def being_deleted(state: State, pointer: str | None) -> Refusal:
    """Refuse a savepoint that is being deleted as a restore point."""
    text = f"{state.job}: {pointer} is being deleted; nothing was changed. Name another checkpoint"
    return Refusal(errors.StateRequired(text))


def start_deleted(command: PlanLaunch, point: e.Point) -> Refusal:
    """Refuse a run whose restore point was deleted."""
    text = (
        f"{command.job}, run {command.spec.run}: {point}, where it would start, was deleted; nothing was changed."
        ' on_clear="continue" continues from the newest checkpoint; restore="none" starts a run from nothing'
    )
    return Refusal(errors.StateRequired(text))


def state_finished(command: PlanLaunch) -> Refusal:
    """Refuse to continue a finished run whose state was deleted with it."""
    text = (
        f'{command.job}, run {command.spec.run}: on_clear="continue", but the state was deleted when the run finished.'
        ' Keep it next time with retention=KeepWithin(days=7), or clear with on_clear="auto" to start again'
    )
    return Refusal(errors.StateRequired(text))


def nothing_to_start_from(command: PlanLaunch) -> Refusal:
    """Refuse a run that requires state when there is none."""
    text = "require_state=True, but there is no checkpoint to start from; check the root and the job id"
    return Refusal(errors.StateRequired(f"{command.job}: {text}"))


def launch_replaced(state: State) -> Refusal:
    """Refuse a driver whose launch was replaced before it started."""
    return Refusal(errors.Fenced(f"{state.job}: the launch of this driver was replaced before it started"))


def launch_stopped(state: State, launch: Launch) -> Refusal:
    """Refuse a driver whose launch was told to stop."""
    return Refusal(errors.Fenced(f"{state.job}: this launch was told to stop ({launch.stop})"))


def driver_stops(state: State, launch: Launch) -> Refusal:
    """Refuse a checkpoint of a driver that was told to stop."""
    return Refusal(
        errors.NotRunning(
            f"{state.job}: its driver was told to stop ({launch.stop}) and takes no more checkpoints; start the job again first"
        )
    )


def launch_ended(state: State, epoch: int, outcome: str) -> Refusal:
    """Refuse a second driver of a launch whose attempt ``epoch`` has ended well or was stopped."""
    return Refusal(errors.Fenced(f"{state.job}: attempt {epoch} of this launch has already ended {outcome}"))


def launch_attached(state: State, epoch: int) -> Refusal:
    """Refuse the end of a launch whose driver has started attempt ``epoch``: the attempt has an end of its own."""
    return Refusal(errors.Fenced(f"{state.job}: attempt {epoch} of this launch has started; nothing was changed"))


def launch_alive(state: State, epoch: int) -> Refusal:
    """Refuse a second driver of a launch whose attempt ``epoch`` is alive."""
    text = f"{state.job}: attempt {epoch} of this launch is alive; this driver ends"
    return Refusal(errors.JobAlreadyRunning(text))


def restore_point_deleted(state: State, launch: Launch) -> Refusal:
    """Refuse a driver whose restore point was deleted after the launch."""
    text = (
        f"{state.job}: the restore point of this driver, {launch.restore_point}, was deleted before the driver started."
        " Clear its task to start from nothing"
    )
    return Refusal(errors.StateRequired(text))


def launch_not_ours(state: State, number: int) -> Refusal:
    """Refuse to stop or end a launch that a later try has taken over."""
    return Refusal(
        errors.Superseded(f"{state.job}: launch {number} does not belong to this try any more; nothing was changed")
    )
