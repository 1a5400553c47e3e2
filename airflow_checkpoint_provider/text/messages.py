"""Log lines and short blocks of checkpoints, stages, savepoints and ends. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.coordinator.sweeping import Swept
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.failures import COUNTED, DECLINED, EXPIRED, STORE_FAILED
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.lifetime import FINISHED
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot, kind_in_words
from airflow_checkpoint_provider.protocol.state import (
    ABORTED,
    PENDING,
    Attempt,
    Checkpoint,
    Run,
    State,
)
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
    new_bytes,
    plural,
    size,
    some,
)

DOCS = "see the README of airflow-checkpoint-provider"
REFUSAL = "REFUSED: "
WORTH_SAYING = 0.1  # seconds in the queue, as in Flink

CODES = {  # what each line means that is no error; docs/behaviour.md shows it
    "CKP114": "Old runs of the job were cleaned up: checkpoints were deleted, or histories closed.",
    "CKP120": "A stage was not computed again. Its stored rows were used.",
    "CKP121": "A stage was computed again although its rows were stored. The line says what changed.",
    "CKP122": "The plan of a stage is sorted, but a stage does not keep the order of rows.",
    "CKP133": "The driver stopped with a savepoint. The job is suspended until a restore.",
    "CKP134": "The savepoint of a stop was aborted. The job continues.",
    "CKP200": "A checkpoint was completed.",
    "CKP203": "The driver acknowledged a gated checkpoint. Its finalize task completes it.",
    "CKP204": "The job has reached its end and waits until its gated checkpoints are finalized.",
    "CKP205": "A checkpoint was triggered. The driver takes it at its next barrier.",
    "CKP206": "A checkpoint is fully acknowledged, but not completed yet.",
    "CKP207": "Files are copied: for a savepoint, for a full checkpoint, or from another history.",
    "CKP208": "A completed savepoint could not be published yet. The next checkpoint, attempt or task tries again.",
    "CKP210": "Checkpoints fail. The job continues, but a crash costs more work with every minute.",
    "CKP211": "More checkpoints failed in a row than tolerable_failures allows. The job fails.",
    "CKP220": "The answer of the store was lost. The result was read back.",
    "CKP250": "A savepoint was completed and published at its target.",
    "CKP251": "A savepoint was deleted on request.",
    "CKP426": "Some restored state was not used in this run and was kept.",
    "CKP427": "Some restored state was not used in this run and was dropped, as allow_non_restored_state says.",
    "CKP501": "The application did not open a CheckpointedJob, so a retry starts from zero.",
}


# -- stages ------------------------------------------------------------------------------------------------------------


def stage_reused(stage: StateSnapshot, why: str = "") -> str:
    """``why`` is given where reuse needed a reason."""
    saved = f"{plural(stage.rows, 'row')} of chk-{stage.measures.checkpoint}"
    because = f"; {why}" if why else ""
    work = duration(stage.measures.work_s)
    return coded(f"stage '{stage.uid}': reused, {saved}, {work} of work not run again{because}", "CKP120")


def stage_recomputed(uid: str, why: str) -> str:
    """``why`` is what moved."""
    return coded(f"stage '{uid}': recomputed. {why[:1].upper()}{why[1:].rstrip('.')}.", "CKP121")


def stage_sorted(uid: str) -> str:
    return coded(
        f"stage '{uid}': its plan is sorted; a stage keeps rows, not their order. Sort after it where order counts.",
        "CKP122",
    )


def application_line(digest: str, before: Attempt | None, run: Run) -> str:
    """Whether the application is what the attempt ``before`` ran."""
    if before is None:
        return f"first attempt of this job; the run began {day_and_time(run.started_at)}"
    if before.application_digest == digest:
        return "application unchanged"
    return f"application changed since attempt {before.epoch}"


def handed_on(states: Sequence[StateSnapshot]) -> str:
    """Restored, not asked for, and not allowed to be left behind: the next checkpoints hold it, too."""
    uids = ", ".join(f'"{state.uid}"' for state in states)
    return coded(
        f"nobody asked for {_named(states)} in this run: handed on as restored. To leave that behind, at the end of a run:"
        f" allow_non_restored_state=[{uids}]",
        "CKP426",
    )


def left_behind(states: Sequence[StateSnapshot]) -> str:
    """As allowed."""
    said = "as allow_non_restored_state says; checkpoints from here on do not hold that"
    return coded(f"nobody asked for {_named(states)} in this run: left behind, {said}", "CKP427")


def _named(states: Sequence[StateSnapshot]) -> str:
    return some(
        [
            f"{kind_in_words(state.kind)} '{state.uid}'" + (f" ({size(state.bytes)})" if state.bytes else "")
            for state in states
        ]
    )


# -- checkpoints -------------------------------------------------------------------------------------------------------


def request(dag: str, run: str, task: str, map_index: int, generation: int) -> str:
    """The name under which a task asks: a retry asks for what its predecessor asked for, a clear asks anew."""
    return "|".join((dag, run, task, str(map_index), str(generation)))


def triggered(state: State, checkpoint: Checkpoint, pointer: Pointer) -> str:
    """With the pointer by which a task can wait for it, or abort it: that of its history, also for a savepoint."""
    gated = "; it is gated: only a task completes it" if checkpoint.request.gated else ""
    stops = ", and stops the job with it" if kind_named(checkpoint.kind).suspends else ""
    lies = f"; a savepoint, at {checkpoint.target}" if checkpoint.target else ""
    waited = between(checkpoint.queued_at, checkpoint.triggered_at)
    queued = f" after {duration(waited)} in the queue" if waited > WORTH_SAYING else ""
    said = f"triggered{queued}, the driver takes it at its next barrier{stops}{gated}{lies}; tasks find it by {pointer}"
    return coded(f"chk-{checkpoint.id} of {title(state, state.scope)}: {said}", "CKP205")


def acknowledged(state: State, checkpoint: Checkpoint) -> str:
    return coded(f"chk-{checkpoint.id} of {title(state, state.scope)}: acknowledged by all, not sealed yet", "CKP206")


def will_not_complete(state: State, checkpoint: Checkpoint) -> str:
    """Why a checkpoint was aborted, and what to clear; without the code, which the error brings."""
    words = f" ({checkpoint.words})" if checkpoint.words else ""
    return f"chk-{checkpoint.id} of {title(state, state.scope)} was aborted: {checkpoint.reason}{words}. {_again(checkpoint)}"


def _again(checkpoint: Checkpoint) -> str:
    asked = checkpoint.request.token.split("|")
    if len(asked) != 5:
        return "Ask for another one"
    dag, run, task = asked[:3]
    return f"Clear task {dag}.{task} of run {run} with its downstream tasks: it then asks for another one"


def checkpoint_line(checkpoint: Checkpoint, took: float | None = None) -> str:
    """A completed one; ``took`` is how many seconds its asynchronous part ran."""
    added = f", {size(new_bytes(checkpoint))} new" if new_bytes(checkpoint) else ""
    held = f"{plural(len(checkpoint.states), 'state')}, {size(checkpoint.bytes)}{added}"
    time = f", {duration(took)}" if took is not None else ""
    place = f"; it lies at {checkpoint.target}" if checkpoint.target else ""
    return coded(
        f"chk-{checkpoint.id} completed at {at_barrier(checkpoint.request.barrier)}: {held}{time}{place}", "CKP200"
    )


def gate_reached(checkpoint: Checkpoint) -> str:
    """A gated one that its driver has acknowledged."""
    within = f"within {duration(checkpoint.timeout_s)}"
    return coded(f"chk-{checkpoint.id} acknowledged; it is gated: its finalize task completes it, {within}", "CKP203")


def gates_awaited(waiting: Sequence[Checkpoint]) -> str:
    """At the end of a job that waits for others' finalize."""
    names = some([f"chk-{one.id}" for one in waiting])
    longest = duration(max(one.timeout_s for one in waiting))
    return coded(f"at its end the job waits for the finalize of {names}, {longest} at most", "CKP204")


def checkpoint_lines(state: State, checkpoint: Checkpoint) -> list[str]:
    """Its outcome, or what it waits for."""
    if checkpoint.status == PENDING:
        gate = ", and then for its finalize task" if checkpoint.request.gated else ""
        return [coded(f"chk-{checkpoint.id} waits for the driver's next barrier{gate}", "CKP205")]
    return aborted(state, checkpoint) if checkpoint.status == ABORTED else [checkpoint_line(checkpoint)]


def aborted(state: State, checkpoint: Checkpoint) -> list[str]:
    why = f"{checkpoint.reason}, in phase {checkpoint.phase}" if checkpoint.phase else checkpoint.reason
    missing = [one or "the driver" for one in checkpoint.missing]
    said = f": {checkpoint.words}" if checkpoint.words else ""
    lines = [headline(f"ABORTED chk-{checkpoint.id} of {title(state)}: {why}", "CKP201")]
    if missing:
        lines.append(labelled("missing", f"{', '.join(missing)} at {at_barrier(checkpoint.request.barrier)}{said}"))
    elif said:
        lines.append(labelled("words", checkpoint.words))
    return [
        *lines,
        labelled("effect", _effect(state, checkpoint)),
        labelled("to do", _to_do(checkpoint)),
    ]


def _effect(state: State, checkpoint: Checkpoint) -> str:
    if checkpoint.reason == "subsumed":
        return "none: a later checkpoint holds all that this one would have held"
    goes_on = any(not state.over(epoch) for epoch in checkpoint.epochs)
    where = _restart(state, checkpoint)
    if not goes_on:
        return f"its attempt is over; the next one starts from {where}"
    return f"the job goes on. If it dies now it restarts from {where}. Failures in a row: {len(state.failed())}"


def _restart(state: State, checkpoint: Checkpoint) -> str:
    point = state.restore_point(checkpoint.plan[0] if checkpoint.plan else "")
    found = state.checkpoint(point.id) if point and point.id else None
    if found is None:
        return str(point) if point else "nothing: no checkpoint was completed"
    return f"chk-{found.id}, {duration(between(found.completed_at, checkpoint.ended_at))} before this"


def _to_do(checkpoint: Checkpoint) -> str:
    if checkpoint.savepoint and checkpoint.reason in COUNTED:
        return f"look at {checkpoint.target}; then ask for another savepoint, nobody tries this one again"
    if checkpoint.reason == EXPIRED and checkpoint.phase == "finalize":
        return "see why its finalize task did not run; or give its trigger a longer timeout"
    if checkpoint.reason == EXPIRED:
        return "nothing if this was slow once; otherwise raise timeout in CheckpointConfig"
    if checkpoint.reason == DECLINED:
        return "see its traceback in the driver's log"
    if checkpoint.reason == STORE_FAILED:
        return "look at the checkpoint storage; the next barrier tries again by itself"
    return "nothing"


def not_protected(last: str, failures: int, cost_s: float, point: Point | None) -> str:
    """``last`` is the newest failure, ``cost_s`` how many seconds of work a crash would cost now."""
    where = str(point) if point else "from nothing"
    return coded(
        f"NOT PROTECTED: {last}; failures in a row: {failures}. The job goes on; a crash now costs {duration(cost_s)} ({where}).",
        "CKP210",
    )


def not_tolerated(failures: int, tolerable: int, last: str) -> str:
    """Why an attempt ends: ``last`` is the newest failure."""
    return coded(
        f"{plural(failures, 'checkpoint')} failed in a row, {tolerable} are tolerated; the last: {last}", "CKP211"
    )


def outcome_known(checkpoint: Checkpoint) -> str:
    """After the store's answer was lost and its content was read back."""
    what = f"aborted ({checkpoint.reason})" if checkpoint.status == ABORTED else "sealed. Completed"
    what = what if checkpoint.ended_at else "not sealed yet"
    return coded(f"chk-{checkpoint.id}: the store's answer was lost; read back: {what}.", "CKP220")


# -- savepoints --------------------------------------------------------------------------------------------------------


def savepoint(checkpoint: Checkpoint) -> str:
    """``savepoint 41-9f3c``, by its id and what makes its directory unique."""
    return f"savepoint {checkpoint.id}-{(checkpoint.target or '').rpartition('-')[2]}"


def copied(what: str, done: int, total: int) -> str:
    """``done`` of ``total`` bytes."""
    return coded(f"{what}: {size(done)} of {size(total)} copied", "CKP207")


def brought_in(point: str, files: int, total: int) -> str:
    """Before what was restored from elsewhere is copied: the history refers to nothing outside of itself."""
    said = f"{point} lies outside of this history: its {plural(files, 'file')}, {size(total)}, are copied into it first"
    return coded(said, "CKP207")


def not_published(error: str) -> str:
    """A completed savepoint that cannot be opened by its directory yet."""
    said = f"a completed savepoint could not be published ({error}); the next checkpoint, attempt or task tries again"
    return coded(said, "CKP208")


def not_known(checkpoint: Checkpoint, error: str) -> str:
    return coded(f"{savepoint(checkpoint)}: {error}; it is looked at again at the next barrier", "CKP220")


def stopped(state: State, checkpoint: Checkpoint, barrier: str, unended: str = "") -> str:
    """A driver's last line. ``unended``: why it could not say that it ended."""
    said = f"STOPPED {title(state)}: suspended with savepoint {checkpoint.target}, taken at {at_barrier(barrier)}."
    more = (
        f" The end of the attempt could not be written ({unended}): savepoint and suspension stand." if unended else ""
    )
    resume = f"Nothing starts before it is resumed: {restore(state, 'latest')}"
    return coded(f"{said}{more} {resume}", "CKP133")


def goes_on(state: State, checkpoint: Checkpoint) -> str:
    """A stop that was asked for, and whose savepoint was aborted."""
    return coded(
        f"{title(state)} is not stopped: {savepoint(checkpoint)} was aborted. The job goes on; ask again", "CKP134"
    )


def savepoint_line(checkpoint: Checkpoint) -> str:
    """One that is completed and published."""
    held = f"{plural(len(checkpoint.states), 'state')}, {size(checkpoint.bytes)}"
    return coded(f"chk-{checkpoint.id} is a savepoint at {checkpoint.target}: {held}", "CKP250")


def disposed(pointer: str, files: int, held: int) -> str:
    """``held`` are bytes. Nothing, where that was done already."""
    what = f"{plural(files, 'file')}, {size(held)}" if files else "nothing was left of it"
    return coded(f"savepoint {pointer} is disposed of: {what}", "CKP251")


def nothing_to_stop(state: State) -> str:
    """Without the code, which the error brings."""
    if state.suspended:
        return (
            f"{title(state, state.scope)}: nothing runs that could be stopped: it is suspended since {state.suspended}. To let it"
            f" go on: RestoreOperator, or {restore(state, 'latest')}"
        )
    point = state.restore_point()
    return (
        f"{title(state, state.scope)}: nothing runs that could be stopped. Its next attempt starts from {point or 'nothing'}; to"
        f" upgrade it no savepoint is needed then. To hold it back, pause its DAG"
    )


def not_stopped(state: State, stop: Checkpoint, why: str) -> str:
    """The savepoint of a stop is completed, but ``why`` its driver did not end as it should; without the code, which the
    error brings."""
    suspended = "the job is suspended" if state.suspended else "somebody has resumed the job since"
    return (
        f"{title(state, state.scope)}: {why}. Savepoint {stop.target} is completed and stays, and {suspended}. See whether its"
        f" driver lives, and end it; to go on, which fences it: {restore(state, f'chk-{stop.id}')}"
    )


# -- ends --------------------------------------------------------------------------------------------------------------


def finished(state: State, run: str) -> list[str]:
    """The run had ended well before this try; its worker was lost afterwards."""
    found = state.run(run)
    attempt = state.attempt_of(found.launch) if found else None
    at = day_and_time(found.ended_at or "") if found else ""
    which = f" (attempt {attempt.epoch})" if attempt else ""
    said = f"{title(state, run)}: finished at {at}{which}, its worker was lost afterwards. Nothing submitted."
    again = "To run it again, also after deleting and re-creating the DAG run: clear this task."
    return [coded(f"{said} {again}", "CKP111")]


def superseded(state: State, run: str) -> str:
    """Without the code, which the error brings."""
    found = state.run(run)
    return wording.superseded(state, run, state.launch(found.launch) if found else None)


def fenced(state: State, epoch: int, doing: str) -> list[str]:
    """An attempt's last lines; exit code 79. ``doing`` is what it was at when it noticed."""
    attempt = state.attempt(epoch)
    what, follow = _replaced(state, attempt)
    said = f"FENCED: attempt {epoch} of {title(state)} {what} (journal read up to entry {state.n})."
    return [
        headline(said, "CKP301"),
        labelled("stopped in", f"{doing}. What it has not acknowledged counts for nothing, and nobody will read it."),
        labelled("to do", follow),
    ]


def _replaced(state: State, attempt: Attempt | None) -> tuple[str, str]:
    if attempt and attempt.how:
        return (
            f"{ENDED.get(attempt.how, attempt.how)} at {clock(attempt.ended_at or '')}, said by {attempt.said_by}",
            "nothing here",
        )
    application = attempt.application if attempt else ""
    launch = state.current_launch(application)
    if launch is None:
        return f"was left by a restore at {clock(state.branch.at)}", "nothing here; the next attempt starts from there"
    newer = state.attempt_of(launch.number)
    follow = f"nothing here; follow try {launch.latest_try} of {launch.spec.owner} in run {launch.spec.run}"
    if newer and newer is not attempt:
        return f"was replaced by attempt {newer.epoch} at {clock(newer.at)}", follow
    return f"was replaced by try {launch.latest_try} at {clock(launch.at)}", follow


def refused(what: str, error: CheckpointError) -> list[str]:
    """``what`` was asked for, e.g. ``flights_etl.delays, run x``."""
    again = "the next try asks again" if not error.permanent else "a retry cannot mend this: the task fails without one"
    return [
        headline(f"REFUSED {what}", error.code),
        labelled("because", error.message),
        labelled("effect", f"nothing was changed, a running attempt was not touched; {again}"),
    ]


def refusal(error: CheckpointError) -> str:
    """A driver's last line, for its task: the only way where it cannot reach the store."""
    return f"{REFUSAL}{' '.join(str(error).split())}"


def refusal_in(line: str) -> str | None:
    """What ``refusal`` said, if this line is one."""
    return line.removeprefix(REFUSAL) if line.startswith(REFUSAL) else None


def suspended(state: State) -> list[str]:
    return [
        coded(
            f"{title(state)} is suspended ({state.suspended}). Waiting. Resume: {restore(state, 'latest')}",
            "CKP130",
        )
    ]


def not_attached() -> list[str]:
    """The application ran without us."""
    said = f"This application never opened a CheckpointedJob: a retry starts from zero. Three lines to add ({DOCS}):"
    return [
        coded(said, "CKP501"),
        "    from airflow_checkpoint_provider.spark import CheckpointedJob",
        "    with CheckpointedJob() as job:",
        '        df = job.stage("a name", df)',
    ]


def closed(state: State) -> str:
    """What there is to say of a history that is closed."""
    kept = "its table was kept 30 days" if state.closing == FINISHED else "nothing of it is kept any more"
    again = "A clear of its task starts it again, from nothing"
    return coded(
        f"{title(state, state.scope)}: closed at {day_and_time(state.at)} ({state.closing}); {kept}. {again}", "CKP234"
    )


def swept(job: str, done: Sequence[Swept]) -> list[str]:
    """One line for a task's log; none if there was nothing to do."""
    emptied = [one for one in done if one.deleted or one.leftovers]
    shut = [one.run for one in done if one.closed]
    failed = next((one for one in done if one.error), None)
    said = []
    if emptied:
        what = f"{plural(sum(len(one.deleted) for one in emptied), 'checkpoint')} and {plural(sum(one.leftovers for one in emptied), 'leftover')}"
        said.append(f"deleted {what} of {some([one.run for one in emptied], 3)}")
    if shut:
        said.append(f"closed {some(shut, 3)}")
    if failed:
        said.append(f"could not tidy up {failed.run or 'at all'}, the next run tries again ({failed.error})")
    return [coded(f"{job}, older runs: {'; '.join(said)}", "CKP114")] if said else []
