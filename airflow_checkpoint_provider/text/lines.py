"""What is said of one checkpoint, one stage, one end: single lines and small blocks. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.failures import COUNTED, DECLINED, EXPIRED, STORE_FAILED
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import ABORTED, FORGOTTEN, PENDING, Attempt, Checkpoint, Run, State
from airflow_checkpoint_provider.protocol.wording import (
    ENDED,
    at_barrier,
    cleared,
    coded,
    headline,
    labelled,
    new_bytes,
    previous,
    restore,
    show,
    title,
)
from airflow_checkpoint_provider.text.units import between, clock, day_and_time, duration, plural, size, some

DOCS = "see the README of airflow-checkpoint-provider"
REFUSAL = "REFUSED: "


# -- stages --------------------------------------------------------------------------------------------------------------


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


def cleared_unchanged(state: State, epoch: int) -> list[str]:
    """A person cleared the task, perhaps to run a fix, and attempt ``epoch`` runs the old code. Nothing where that is not so."""
    attempt = state.attempt(epoch)
    launch = state.launch(attempt.launch) if attempt else None
    before = previous(state, launch) if launch else None
    old = state.attempt_of(before.number) if before else None
    if attempt is None or launch is None or old is None or not cleared(state, launch):
        return []
    if old.application_digest != attempt.application_digest:
        return []
    said = f"clear: the application is byte-equal to attempt {old.epoch}'s."
    return [coded(f'{said} To run a fix, clear with "run on latest version".', "CKP103")]


# -- checkpoints -----------------------------------------------------------------------------------------------------------


def checkpoint_line(checkpoint: Checkpoint, took: float | None = None) -> str:
    """A completed one; ``took`` is how many seconds its asynchronous part ran."""
    added = f", {size(new_bytes(checkpoint))} new" if new_bytes(checkpoint) else ""
    held = f"{plural(len(checkpoint.states), 'state')}, {size(checkpoint.bytes)}{added}"
    time = f", {duration(took)}" if took is not None else ""
    place = f"; it lies at {checkpoint.target}" if checkpoint.target else ""
    return coded(f"chk-{checkpoint.id} completed at {at_barrier(checkpoint.barrier)}: {held}{time}{place}", "CKP200")


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
        gate = ", and then for its finalize task" if checkpoint.gated else ""
        return [coded(f"chk-{checkpoint.id} waits for the driver's next barrier{gate}", "CKP205")]
    return aborted(state, checkpoint) if checkpoint.status == ABORTED else [checkpoint_line(checkpoint)]


def aborted(state: State, checkpoint: Checkpoint) -> list[str]:
    why = f"{checkpoint.reason}, in phase {checkpoint.phase}" if checkpoint.phase else checkpoint.reason
    missing = [one or "the driver" for one in checkpoint.missing]
    said = f": {checkpoint.words}" if checkpoint.words else ""
    lines = [headline(f"ABORTED chk-{checkpoint.id} of {title(state)}: {why}", "CKP201")]
    if missing:
        lines.append(labelled("missing", f"{', '.join(missing)} at {at_barrier(checkpoint.barrier)}{said}"))
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


# -- ends --------------------------------------------------------------------------------------------------------------------


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
    follow = f"nothing here; follow try {launch.latest_try} of {launch.owner} in run {launch.run}"
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


def deleted_line(count: int, state: State) -> str:
    """After a task deleted what ends with its run; ``count`` checkpoints went."""
    run = state.runs[-1].key if state.runs else ""
    kept = [f"chk-{one.id}" for one in state.retained]
    if kept:
        deleted = f"{plural(count, 'old checkpoint')} deleted" if count else "nothing deleted"
        return f" {deleted}, kept: {some(kept)}; this table again: {show(state, run)}"
    gone = sum(one.status == FORGOTTEN for one in state.checkpoints)
    what = f"state deleted (run finished, {plural(gone, 'checkpoint')})" if gone else "no state was left"
    stays = "stays for 30 days" if state.scope else "stays"
    return f" {what}; this table {stays}: {show(state, run)}"
