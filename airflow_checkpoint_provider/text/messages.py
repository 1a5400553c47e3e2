"""Log lines and short blocks of checkpoints, savepoints and ends of attempts. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.checkpoint_records import PENDING, AbortCause, Checkpoint
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.protocol.kinds import COUNTED, DECLINED, EXPIRED, FINALIZE, STORE_FAILED, SUBSUMED
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.lifetime import FINISHED
from airflow_checkpoint_provider.protocol.state import Closing, State
from airflow_checkpoint_provider.protocol.wording import restore, title
from airflow_checkpoint_provider.text.units import (
    ENDED,
    at_barrier,
    between,
    clock,
    coded,
    day_and_time,
    duration,
    headline,
    labelled,
    plural,
    size,
    some,
)

QUERIES = "the queries continue after their newest batches"
WORTH_SAYING = 0.1  # seconds in the queue, as in Flink

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP133": "The driver stopped with a savepoint. The job is suspended until a restore.",
    "CKP134": "The savepoint of a stop was aborted. The job continues.",
    "CKP200": "A checkpoint or savepoint was completed. The line of a savepoint ends with its target.",
    "CKP203": "The driver acknowledged a gated checkpoint. Its finalize task completes it.",
    "CKP204": "The job has reached its end and waits until its gated checkpoints are finalized.",
    "CKP205": "A checkpoint was triggered. The driver takes it at its next barrier.",
    "CKP206": "A checkpoint is fully acknowledged, but not completed yet.",
    "CKP207": "Files are copied: for a savepoint, for a full checkpoint, or from another history.",
    "CKP208": "A completed savepoint could not be published yet. The next checkpoint, attempt or task tries again.",
    "CKP210": "Checkpoints fail, or old ones cannot be deleted. The job continues, but a crash costs more work with every minute.",
    "CKP211": "More checkpoints failed in a row than tolerable_failures allows. The job fails.",
    "CKP213": "The driver had too little time to write its newest checkpoint, or its end. A retry starts from what is completed.",
    "CKP220": "The answer of the store was lost. The result was read back.",
    "CKP248": "The asset of a job has no events, because the job has no history yet. The line says why that may be.",
    "CKP250": "A task has waited for a savepoint. It is completed, and published at its target.",
    "CKP251": "A savepoint was deleted on request.",
}


# -- checkpoints -------------------------------------------------------------------------------------------------------


def triggered(state: State, checkpoint: Checkpoint, pointer: Pointer) -> str:
    """Say that a checkpoint was triggered, and by which pointer tasks can wait for it or abort it."""
    waited = between(checkpoint.queued_at, checkpoint.triggered_at)
    queued = f" after {duration(waited)} in the queue" if waited > WORTH_SAYING else ""
    stops = ", and stops the job with it" if checkpoint.suspends else ""
    sentences = [
        f"chk-{checkpoint.id} of {title(state, state.scope)}: triggered{queued}.",
        f"The driver takes it at its next barrier{stops}.",
        *(["It is gated: its finalize task completes it."] if checkpoint.request.gated else []),
        *([f"The savepoint is written to {checkpoint.target}."] if checkpoint.target else []),
        f"Pointer for tasks: {pointer}",
    ]
    return coded(" ".join(sentences), "CKP205")


def acknowledged(state: State, checkpoint: Checkpoint) -> str:
    """Say that a checkpoint waits only for its completion."""
    text = f"chk-{checkpoint.id} of {title(state, state.scope)}: fully acknowledged, not completed yet"
    return coded(text, "CKP206")


def will_not_complete(state: State, checkpoint: Checkpoint) -> str:
    """Say why a checkpoint was aborted, and what to clear. The code comes with the error."""
    cause = checkpoint.abort_cause
    detail = f" ({cause.details})" if cause and cause.details else ""
    return f"chk-{checkpoint.id} of {title(state, state.scope)} was aborted: {checkpoint.reason}{detail}. {_again(checkpoint)}"


def _again(checkpoint: Checkpoint) -> str:
    token = checkpoint.request.token.split("|")
    if len(token) != 5:
        return "Trigger another checkpoint"
    dag, run, task = token[:3]
    return f"Clear task {dag}.{task} of run {run} with its downstream tasks to trigger another checkpoint"


def checkpoint_line(checkpoint: Checkpoint, took: float | None = None) -> str:
    """Say that a checkpoint was completed; ``took`` is how many seconds its asynchronous part ran."""
    added = f", {size(checkpoint.new_bytes)} new" if checkpoint.new_bytes else ""
    held = f"{plural(len(checkpoint.states), 'state')}, {size(checkpoint.bytes)}{added}"
    time = f", {duration(took)}" if took is not None else ""
    in_flight = f"; unaligned, {size(checkpoint.in_flight_bytes)} in flight" if checkpoint.in_flight_bytes else ""
    place = f"; target {checkpoint.target}" if checkpoint.target else ""
    return coded(
        f"chk-{checkpoint.id} completed at {at_barrier(checkpoint.barrier)}: {held}{time}{in_flight}{place}",
        "CKP200",
    )


def gate_reached(checkpoint: Checkpoint) -> str:
    """Say that the driver has acknowledged a gated checkpoint."""
    limit = duration(checkpoint.timeout_s)
    text = f"chk-{checkpoint.id} acknowledged. It is gated: its finalize task must complete it within {limit}"
    return coded(text, "CKP203")


def gates_awaited(waiting: Sequence[Checkpoint]) -> str:
    """Say that the job, at its end, waits for finalize tasks."""
    names = some([f"chk-{checkpoint.id}" for checkpoint in waiting])
    longest = duration(max(checkpoint.timeout_s for checkpoint in waiting))
    return coded(f"The job has reached its end. It waits for the finalize task of {names}, up to {longest}", "CKP204")


def checkpoint_lines(state: State, checkpoint: Checkpoint) -> list[str]:
    """Return the outcome of a checkpoint, or the step for which it waits."""
    if checkpoint.status == PENDING:
        gate = ", and then for its finalize task" if checkpoint.request.gated else ""
        return [coded(f"chk-{checkpoint.id} waits for the driver's next barrier{gate}", "CKP205")]
    return aborted(state, checkpoint) or [checkpoint_line(checkpoint)]


def aborted(state: State, checkpoint: Checkpoint, *, effect: bool = True) -> list[str]:
    """Return why a checkpoint was aborted, the effect on the job now (if ``effect``), and what to do. Nothing if it was not aborted."""
    cause = checkpoint.abort_cause
    if cause is None:
        return []
    why = f"{cause.reason}, in phase {cause.phase}" if cause.phase else cause.reason
    missing = [application or "the driver" for application in cause.missing]
    detail = f": {cause.details}" if cause.details else ""
    lines = [headline(f"ABORTED chk-{checkpoint.id} of {title(state)}: {why}", "CKP201")]
    if missing:
        lines.append(labelled("missing", f"{', '.join(missing)} at {at_barrier(checkpoint.barrier)}{detail}"))
    elif detail:
        lines.append(labelled("details", cause.details))
    if effect:
        lines.append(labelled("effect", _effect(state, checkpoint)))
    return [*lines, labelled("to do", _to_do(checkpoint, cause))]


def _effect(state: State, checkpoint: Checkpoint) -> str:
    if checkpoint.reason == SUBSUMED:
        return "none: a later checkpoint contains the same states"
    goes_on = any(not state.over(epoch) for epoch in checkpoint.epochs)
    where = _restart(state, checkpoint)
    if not goes_on:
        return f"its attempt has ended; the next attempt starts from {where}"
    return f"the job continues. If it fails now, the next attempt starts from {where}. Failures in a row: {len(state.failed())}"


def _restart(state: State, checkpoint: Checkpoint) -> str:
    point = state.restore_point(checkpoint.plan[0] if checkpoint.plan else "")
    start = state.checkpoint(point.id) if point and point.id else None
    if start is None:
        return str(point) if point else "nothing: no checkpoint was completed"
    earlier = between(start.completed_at, checkpoint.ended_at)
    return f"chk-{start.id}, {duration(earlier)} before this" if earlier > 0 else f"chk-{start.id}"


def _to_do(checkpoint: Checkpoint, cause: AbortCause) -> str:
    if checkpoint.savepoint and cause.reason in COUNTED:
        return f"check {checkpoint.target}, then trigger another savepoint; this one is not tried again"
    if cause.reason == EXPIRED and cause.phase == FINALIZE:
        return "check why its finalize task did not run, or set a longer timeout in its trigger task"
    if cause.reason == EXPIRED:
        return "nothing if this was slow once; otherwise raise timeout in CheckpointConfig"
    if cause.reason == DECLINED:
        return "see the traceback in the driver's log"
    if cause.reason == STORE_FAILED:
        return "check the checkpoint storage; the next barrier tries again"
    return "nothing"


def not_protected(last: str, failures: int, cost_s: float, point: Point | None) -> str:
    """Say that checkpoints fail; ``last`` is the newest failure, ``cost_s`` the seconds of work that a crash would cost now."""
    return coded(
        f"NOT PROTECTED: {last}; failures in a row: {failures}. The job continues. A crash now costs {duration(cost_s)}: the next attempt"
        f" starts from {point or 'nothing'}.",
        "CKP210",
    )


def not_tolerated(failures: int, tolerable: int, last: str) -> str:
    """Say why an attempt ends; ``last`` is the newest failure."""
    count = plural(failures, "checkpoint")
    return coded(f"{count} failed in a row, but tolerable_failures is {tolerable}. Last failure: {last}", "CKP211")


def not_written_in_time(missing: Sequence[str], limit_s: float) -> list[str]:
    """Say what a driver could not write before its end."""
    if not missing:
        return []
    text = f"Within {duration(limit_s)}, the driver could not write {' and '.join(missing)}. A retry starts from the newest completed checkpoint"
    return [coded(text, "CKP213")]


def outcome_known(checkpoint: Checkpoint) -> str:
    """Say that a checkpoint was read back as completed after the store's answer was lost."""
    return coded(f"chk-{checkpoint.id}: the store's answer was lost; read back: sealed. Completed.", "CKP220")


# -- savepoints --------------------------------------------------------------------------------------------------------


def savepoint(checkpoint: Checkpoint) -> str:
    """Return the name of a savepoint: its id and the end of its directory's name, e.g. ``savepoint 41-9f3c``."""
    return f"savepoint {checkpoint.id}-{(checkpoint.target or '').rpartition('-')[2]}"


def copied(what: str, done: int, total: int) -> str:
    """Say how many bytes were copied, ``done`` of ``total``."""
    return coded(f"{what}: {size(done)} of {size(total)} copied", "CKP207")


def copying_from_elsewhere(point: Point, files: int, total: int) -> str:
    """Say that files of another history, or of an own savepoint, are copied before the job starts."""
    where = "is a savepoint of this job" if point.pointer is None else "belongs to another history"
    return coded(f"{point} {where}. Copying its {plural(files, 'file')}, {size(total)}, first", "CKP207")


def not_published(error: str) -> str:
    """Say that a completed savepoint cannot be opened by its directory yet."""
    text = (
        f"a completed savepoint could not be published yet ({error}). The next checkpoint, attempt or task tries again"
    )
    return coded(text, "CKP208")


def not_known(checkpoint: Checkpoint, error: str) -> str:
    """Say that the outcome of a savepoint could not be read."""
    return coded(f"{savepoint(checkpoint)}: {error}. The next barrier reads the outcome again", "CKP220")


def stopped(state: State, checkpoint: Checkpoint, barrier: str, unended: str = "") -> str:
    """Return the last line of a driver that stopped; ``unended`` is why it could not write its end."""
    text = f"STOPPED {title(state)}: suspended with savepoint {checkpoint.target}, taken at {at_barrier(barrier)}."
    unsaid = f" The end of the attempt could not be written ({unended}); the savepoint and the suspension are valid."
    return coded(f"{text}{unsaid if unended else ''} To resume: {restore(state, 'latest')}", "CKP133")


def goes_on(state: State, checkpoint: Checkpoint) -> str:
    """Say that a job was not stopped, because its savepoint was aborted."""
    text = f"{title(state)} was not stopped: {savepoint(checkpoint)} was aborted. The job continues. To stop it, request another stop"
    return coded(text, "CKP134")


def savepoint_line(checkpoint: Checkpoint) -> str:
    """Say that a savepoint is completed and published, in the log of the task that has asked for it."""
    held = f"{plural(len(checkpoint.states), 'state')}, {size(checkpoint.bytes)}"
    return coded(f"chk-{checkpoint.id} is a savepoint at {checkpoint.target}: {held}", "CKP250")


def disposed(pointer: str, files: int, held: int) -> str:
    """Say that a savepoint was deleted; ``held`` is its size in bytes."""
    content = f"{plural(files, 'file')}, {size(held)}" if files else "nothing was left of it"
    return coded(f"savepoint {pointer} deleted: {content}", "CKP251")


def nothing_to_stop(state: State) -> str:
    """Say that no attempt is running. The code comes with the error."""
    text = f"{title(state, state.scope)}: nothing to stop."
    if state.suspended:
        resume = restore(state, "latest")
        return f"{text} The job is suspended {wording.suspension(state)}. To resume it: RestoreOperator, or {resume}"
    start = next_start(state)
    return f"{text} The next attempt starts from {start}, so an upgrade needs no savepoint. To hold the job back, pause its DAG"


def next_start(state: State, application: str = "") -> str:
    """Return where the next attempt starts: ``chk-3``. Queries that do not go back continue after their newest batches, however old that
    is.
    """
    point = str(state.restore_point(application) or "nothing")
    return f"{point}, and {QUERIES}" if queries_go_on(state) else point


def queries_go_on(state: State) -> bool:
    """Return whether the next attempt has queries, and none of them goes back."""
    return bool(state.queries) and not any(map(state.branch.goes_back, state.queries))


def queries_have_run(state: State, saved: str, uids: Sequence[str]) -> str:
    """Say that a job which does not run has changed since the savepoint ``saved``. The code comes with the error."""
    names = some([f"query '{uid}'" for uid in uids])
    return (
        f"{title(state, state.scope)}: nothing runs, so no savepoint can be taken. Savepoint {saved} may lack the newest batches of"
        f" {names}, which ran on after it. Start the job, then try again"
    )


def not_stopped(state: State, stop: Checkpoint, why: str) -> str:
    """Say that the savepoint of a stop is complete, but its driver has not ended. The code comes with the error."""
    suspended = "the job is suspended" if state.suspended else "the job was resumed since"
    return (
        f"{title(state, state.scope)}: {why}. Savepoint {stop.target} is completed, and {suspended}. If the driver is still"
        f" running, end it. To resume, which fences the driver: {restore(state, f'chk-{stop.id}')}"
    )


def ended_after_stop(state: State, stop: Checkpoint, how: str) -> str:
    """Say that the savepoint of a stop is complete, but its driver did not end as it should: ``how`` it ended. The code comes
    with the error."""
    suspended = "The job is suspended" if state.suspended else "The job was resumed since"
    return (
        f"{title(state, state.scope)}: its driver {how} after savepoint {stop.target} was completed. {suspended}, and the savepoint is"
        f" whole. Look into the driver's log. To resume: {restore(state, f'chk-{stop.id}')}"
    )


def no_events_yet(job: str, why: str) -> str:
    """Say that a triggerer watches a job that has no history, and ``why`` that may be."""
    return coded(f"The asset of job {job!r} has no events yet: {why}", "CKP248")


# -- ends --------------------------------------------------------------------------------------------------------------


def fenced(state: State, epoch: int, doing: str) -> list[str]:
    """Return the last lines of a replaced attempt; ``doing`` is its activity when it noticed. The exit code is 79."""
    outcome, follow = _replaced(state, state.attempt(epoch))
    text = f"FENCED: attempt {epoch} of {title(state)} {outcome} (journal read up to entry {state.n})."
    return [
        headline(text, "CKP301"),
        labelled("stopped in", f"{doing}. Work since its last checkpoint is discarded."),
        labelled("to do", follow),
    ]


def _replaced(state: State, attempt: AttemptRecord | None) -> tuple[str, str]:
    if attempt and (end := attempt.ending):
        return f"{ENDED.get(end.outcome, end.outcome)} at {clock(end.at)}, written by {end.reported_by}", "nothing here"
    application = attempt.application if attempt else ""
    launch = state.current_launch(application)
    if launch is None:
        replaced = f"was replaced by a restore at {clock(state.branch.at)}"
        return replaced, "nothing here; the next attempt starts from the restored checkpoint"
    newer = state.attempt_of(launch.number)
    follow = f"nothing here; follow try {launch.latest_try} of {launch.spec.owner} in run {launch.spec.run}"
    if newer and newer is not attempt:
        return f"was replaced by attempt {newer.epoch} at {clock(newer.at)}", follow
    return f"was replaced by try {launch.latest_try} at {clock(launch.at)}", follow


def closed(state: State, closing: Closing) -> str:
    """Say that a history is closed, and how to start again."""
    remains = "its table was kept for 30 days" if closing.reason == FINISHED else "nothing of it is kept"
    text = f"{title(state, state.scope)}: closed at {day_and_time(state.at)} ({closing.reason}); {remains}."
    return coded(f"{text} To start it again, from nothing, clear its task", "CKP234")
