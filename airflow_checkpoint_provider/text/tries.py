"""Lines about tries that fail: the verdict of the retry policy, and the text of a notification. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_checkpoint_provider.errors import CheckpointError, printable, shortened, without_userinfo
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.tries import Tries, completed_newer
from airflow_checkpoint_provider.protocol.wording import Name, command, item_option, of_connection, title, typed_command
from airflow_checkpoint_provider.text.messages import next_start, queries_go_on
from airflow_checkpoint_provider.text.summary_table import last_sign
from airflow_checkpoint_provider.text.units import (
    ago,
    at_barrier,
    between,
    coded,
    day_and_time,
    driver_ended,
    duration,
    fitting,
    headline,
    labelled,
    plural,
    some,
)

LONGEST_REASON = 1000  # characters of an error in a notification

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP510": "The retry policy fails the task: so many tries in a row have completed no newer checkpoint, and no newer batch.",
    "CKP511": "The retry policy cannot tell whether the tries get further. Airflow's own rule decides about the retry.",
    "CKP512": "The text of a notification: a task of a job failed, or is tried again.",
    "CKP513": "A notification has no facts about the job, because its journal could not be read.",
}


# -- the retry policy --------------------------------------------------------------------------------------------------


def stuck(state: State, tries: Tries) -> str:
    """Say why the task is failed although it has retries left, and what to do."""
    numbers = some([f"try {launch.latest_try}" for launch in tries.stuck])
    look = command("story", Name(state.job), Name(tries.newest.spec.run), *item_option(state), state=state)
    return coded(
        f"{title(state, tries.newest.spec.run)}: {in_a_row(state, tries)} ({numbers}). Another one would repeat the same work."
        f" Mend the cause, then clear the task. `{look}` tells what happened",
        "CKP510",
    )


def in_a_row(state: State, tries: Tries) -> str:
    """Return how many tries got no further: ``3 tries in a row have completed no newer checkpoint than chk-4``."""
    have = f"{plural(len(tries.stuck), 'try')} in a row {fitting(len(tries.stuck), 'have')}"
    point = tries.stuck[0].restore_point
    none = "no checkpoint that holds work" if state.restore_point(tries.newest.spec.application) else "no checkpoint"
    nothing = f"no newer checkpoint than {point}" if point else none
    return f"{have} completed {nothing}{', and committed no newer batch' if state.queries else ''}"


def goes_on(state: State, tries: Tries, stuck_after: int) -> str:
    """Say why the policy leaves the retry to Airflow."""
    if not tries.stuck and not completed_newer(state, tries.newest):
        return "the queries of this try have committed newer batches"
    if not tries.stuck:
        return printable(
            f"this try has completed a newer checkpoint, {state.restore_point(tries.newest.spec.application)}"
        )
    if not tries.over:
        return "the driver of this try has not recorded its end: the next try looks whether it still runs"
    return printable(f"{in_a_row(state, tries)}; the task fails after {stuck_after}")


NOT_LAUNCHED = "this try has launched nothing, so it says nothing about the job"


def cannot_tell(why: str) -> str:
    """Say that Airflow's own rule decides, because the policy knows nothing about the tries."""
    return coded(
        f"The retry policy cannot tell whether the tries get further: {why}. Airflow's own rule decides", "CKP511"
    )


# -- notifications -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailedTask:
    """What Airflow knows of a task that failed. ``reason`` is empty if no process of the task has reported one.

    ``tries`` is how many tries it has at most. ``connection`` leads to the store of its job.
    """

    task: str
    run: str
    try_number: int
    tries: int
    retried: bool
    reason: str = ""
    connection: str = ""


def subject(failed: FailedTask) -> str:
    """Return the text in one line: ``FAILED etl.delays, run manual__1: try 3 of 3``."""
    word = "RETRY of" if failed.retried else "FAILED"
    return printable(f"{word} {failed.task}, run {failed.run}: try {failed.try_number} of {failed.tries} failed")


def notification(failed: FailedTask, state: State, run: str, tries: Tries | None, now: str) -> list[str]:
    """Return the text about a task whose job has ``state``. ``run`` is that of the job, empty if the task names only a job.

    ``tries``: None if the task submits no job, or has launched nothing.
    """
    lines = [headline(subject(failed), "CKP512")]
    if state.n < 0:
        return [*lines, labelled("reason", _reason(failed, state, tries)), labelled("job", "has no history yet")]
    lines += [
        labelled("job", title(state, run or state.scope)),
        labelled("reason", _reason(failed, state, tries)),
        labelled("checkpoint", _newest(state, tries, now)),
    ]
    lines += [labelled("next", _next(failed, state, tries, now))] if tries else []
    lines += [labelled("no further", in_a_row(state, tries))] if tries and tries.stuck else []
    return [*lines, *_commands(state, state.scope or run)]


def without_facts(failed: FailedTask, error: CheckpointError) -> list[str]:
    """Return the text if the journal cannot be read."""
    with typed_command("airflow checkpoints", of_connection(failed.connection)):
        look = command("jobs")
    return [
        headline(subject(failed), "CKP512"),
        labelled("reason", _shown(failed.reason) or "not known here"),
        coded(labelled("job", f"its journal cannot be read from here: {error}"), "CKP513"),
        labelled("to look", look),
    ]


def _reason(failed: FailedTask, state: State, tries: Tries | None) -> str:
    if failed.reason:
        return _shown(failed.reason)
    lost = "Airflow lost the process of this try, which has reported nothing"
    if tries is None or not tries.over:
        return lost
    return f"{lost}; {driver_ended(tries.attempt, tries.newest.outcome or '', tries.newest.exit_code)}"


def _shown(reason: str) -> str:
    return shortened(without_userinfo(printable(reason)), LONGEST_REASON)


def _newest(state: State, tries: Tries | None, now: str) -> str:
    """Return the newest completed checkpoint from which the job can start, and its age; and what it adds nothing to, if tries in a row got
    no further.
    """
    point = state.restore_point()
    found = state.checkpoint(point.id) if point and point.pointer is None else None
    if found is None:
        return f"{point}, of another history" if point else "none is completed"
    stuck = {launch.number for launch in tries.stuck} if tries else set()
    attempts = [attempt for attempt in state.attempts if attempt.epoch in found.epochs and attempt.launch in stuck]
    if tries is None or not attempts:
        return _with_age(found, now)
    start = tries.stuck[0].restore_point
    before = state.checkpoint(start.id) if start and start.pointer is None else None
    older = _with_age(before, now) if before else str(start or "the beginning")
    return f"{_with_age(found, now)}. It adds nothing to {older}"


def _with_age(checkpoint: Checkpoint, now: str) -> str:
    when, age = day_and_time(checkpoint.completed_at), ago(between(checkpoint.completed_at, now))
    return f"chk-{checkpoint.id}, completed {when} at {at_barrier(checkpoint.barrier)}, {age} ago"


def _next(failed: FailedTask, state: State, tries: Tries, now: str) -> str:
    """Return where the next attempt starts, and how much work it repeats."""
    start = next_start(state, tries.newest.spec.application)
    attempt, over = tries.attempt, "" if failed.retried else "no other try follows; "
    if attempt is None:
        return (
            f"{over}the next attempt continues from {start}. No driver of this try has attached, so no work is repeated"
        )
    if not tries.over:
        after = "The next try follows it then; else it" if failed.retried else "After it, the job"
        return (
            f"{over}attempt {attempt.epoch} has not recorded its end, and may still run. {after} continues from {start}"
        )
    if queries_go_on(state):
        return f"{over}the next attempt continues from {start}"
    saved = max((one.completed_at for one in state.checkpoints_of(attempt.epoch)), default="") or attempt.at
    work = duration(between(saved, last_sign(state, attempt) or now))
    return f"{over}the next attempt continues from {start}, and repeats {work} of work"


def _commands(state: State, run: str) -> Iterator[str]:
    names = [Name(state.job), *([Name(run)] if run else [])]
    for number, verb in enumerate(("story", "show", "list")):
        words = names if verb != "list" else names[:1]
        yield labelled("" if number else "to look", command(verb, *words, *item_option(state), state=state))
