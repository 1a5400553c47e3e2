"""The restore story: why there is a new attempt and where it continues. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.coordinator.restore import Candidate, Restored, candidates_at_start
from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch
from airflow_checkpoint_provider.protocol.metadata import OF_RUN, kind_in_words
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import command, restore, title
from airflow_checkpoint_provider.text import out_of_memory, query_progress, work
from airflow_checkpoint_provider.text.messages import QUERIES, closed
from airflow_checkpoint_provider.text.units import (
    ago,
    at_barrier,
    between,
    clock,
    coded,
    day_and_time,
    duration,
    headline,
    how_it_ended,
    labelled,
    plural,
    sealed,
    size,
    some,
    when,
)

SHOWN_REJECTED, SHOWN_OLDER = 5, 3

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP100": "The first attempt of a run starts from nothing, as expected.",
    "CKP101": "The restore story: why there is a new attempt, which checkpoints exist, and where it continues.",
    "CKP102": "A job whose runs share one history starts from nothing. If you expected a history, stop the job now.",
    "CKP103": "The task was cleared, but the application has not changed since the attempt before.",
    "CKP110": "The driver of an earlier try is still running. This try follows it and submits nothing.",
    "CKP113": "The task checks whether an earlier driver is still running.",
    "CKP118": "A clear discarded what Airflow had stored for the task, so the run starts over. The line says how to keep its work.",
    "CKP119": "The cluster has started the driver of a launch again. It continues from the latest checkpoint of the launch.",
}


@dataclass(frozen=True)
class StoryFacts:
    """The facts that a task knows besides the journal: the store, the newest heartbeat of the earlier driver, whether that driver is alive
    (None: unknown), and the time.
    """

    root: str = ""
    beat: Beat | None = None
    alive: bool | None = False
    now: str = ""


NOTHING_SEEN, LONG_AGO = StoryFacts(), StoryFacts(alive=None)


def launch_story(
    before: State, state: State, launch: Launch, restored: Restored, seen: StoryFacts = NOTHING_SEEN
) -> list[str]:
    """Return the story of a task that has planned or adopted ``launch``.

    ``before`` is the state before its decision, ``state`` the state after it, ``restored`` the verified restore point.
    """
    if launch.adopted_by and before.launch(launch.number):
        return [_adopted(state, launch, seen)]
    opened = [closed(before, before.closing)] if before.closing else []
    return [*opened, *_story(state, launch, restored, seen)]


def restore_story(state: State, restored: Restored, seen: StoryFacts = NOTHING_SEEN) -> list[str]:
    """Return the story of a script without Airflow; its launch and attempt are already in ``state``."""
    launch = state.current_launch()
    return _story(state, launch, restored, seen) if launch else []


def retold(state: State, launch: Launch, attempt: AttemptRecord | None) -> list[str]:
    """Return the story of an attempt, or of a launch without one, from the journal alone, and how it went on.

    Facts that its task or driver knew besides the journal are lost.
    """
    restored = candidates_at_start(state, launch, attempt)
    sibling = _sibling(state, attempt)
    lines = _story(state, launch, restored, LONG_AGO) if sibling is None else []
    if attempt and sibling:
        lines = [
            headline(
                f"RESTORE {title(state, launch.spec.run)}: try {launch.latest_try}, attempt {attempt.epoch}", "CKP101"
            ),
            labelled(
                "event", f"another driver under the same launch: {_previous_end(launch, sibling, LONG_AGO, attempt.at)}"
            ),
            *_fenced(launch, sibling),
            *_candidates(restored, attempt.at),
            labelled("continues", _continuation(state, launch, sibling, restored, LONG_AGO)),
        ]
    return [*lines, *_branch_lines(state, launch), *_since(state, launch, attempt)]


def waits_for_heartbeat(state: State, seconds: float) -> str:
    """Say that an observer waits for heartbeats, for at most ``seconds``."""
    launch = state.current_launch()
    attempt = state.attempt_of(launch.number) if launch else None
    observed = f"attempt {attempt.epoch}" if attempt else "the launch before this one"
    return coded(f"{state.job}: checking whether {observed} is still running (up to {ago(seconds)})", "CKP113")


def started_again(state: State, epoch: int | None) -> list[str]:
    """Return the line for a driver that its cluster has started again; none for the first driver of a launch."""
    attempt = state.attempt(epoch) if epoch else None
    earlier = [one for one in state.attempts if attempt and one.launch == attempt.launch and one.epoch < attempt.epoch]
    if attempt is None or not earlier:
        return []
    begins = f"from {attempt.restore_point}" if attempt.restore_point else "from nothing"
    text = f"RESTORE {title(state)}: after attempt {earlier[-1].epoch} the cluster has started the driver again,"
    return [coded(f"{text} attempt {attempt.epoch}, {begins}.", "CKP119")]


def driver_says(beat: Beat) -> list[str]:
    """Return the last line of the story, which only the driver knows."""
    parts = [f"attached {clock(beat.attached_at)}"] if beat.attached_at else []
    parts += [beat.application_change] if beat.application_change else []
    parts += [f"reused {some(beat.reused)}"] if beat.reused else []
    parts += [f"now running {doing(beat)}"] if beat.activity else []
    return [labelled("driver says", "; ".join(parts) or "nothing yet")]


# -- short forms -------------------------------------------------------------------------------------------------------


def _adopted(state: State, launch: Launch, seen: StoryFacts) -> str:
    attempt = state.attempt_of(launch.number)
    observed = (
        f"attempt {attempt.epoch}"
        if attempt
        else f"the launch of try {launch.spec.try_number}, whose driver still starts,"
    )
    details = [f"heartbeat {ago(between(seen.beat.at, seen.now))} ago"] if seen.beat and seen.now else []
    details += [doing(seen.beat)] if seen.beat and seen.beat.activity else []
    detail = f" ({', '.join(details)})" if details else ""
    return coded(
        f"ADOPT {title(state)}: {observed} is alive{detail}. Not submitted again; this try follows it.", "CKP110"
    )


def doing(beat: Beat) -> str:
    """Return the activity of a driver at its heartbeat, and the share of its planned Spark tasks that were done."""
    activity = beat.activity + (f" {beat.fraction * 100:.0f} %" if beat.fraction is not None else "")
    brief = query_progress.brief(beat) if beat.queries else ""
    of_queries = brief and beat.activity == query_progress.running(beat.queries)
    return printable(brief if of_queries else ", ".join(filter(None, (activity, brief))))


def _from_nothing(state: State, launch: Launch, seen: StoryFacts) -> list[str]:
    """Return the story of the first attempt of a run that has nothing to start from."""
    begin = f"RESTORE {title(state, launch.spec.run)}: first attempt of this run,"
    if launch.spec.restore == "none":
        return [coded(f'{begin} starts from nothing (restore="none").', "CKP100")]
    if state.of_one_run or (state.scope and launch.number == 1):
        return [coded(f'{begin} starts from nothing (restore="latest" found no history, none expected).', "CKP100")]
    has = "no history" if launch.number == 1 else "no completed checkpoint"
    under = f" under {seen.root}" if seen.root else ""
    but = f", but {QUERIES}" if state.queries else ""
    warning = f"STARTS FROM NOTHING: job '{state.job}' has {has}{under}{but}."
    advice = f"If you expected one, stop this job now. `{command('jobs', state=state)}` lists what this root holds"
    return [coded(f"{begin} {warning} {advice}.", "CKP102")]


def cleared_unchanged(state: State, epoch: int) -> list[str]:
    """Say that a cleared task runs the old code in attempt ``epoch``; empty otherwise. The clear was perhaps to run a fix."""
    attempt = state.attempt(epoch)
    launch = state.launch(attempt.launch) if attempt else None
    earlier = previous(state, launch) if launch else None
    replaced = state.attempt_of(earlier.number) if earlier else None
    if attempt is None or launch is None or replaced is None or not cleared(state, launch):
        return []
    if replaced.application_digest != attempt.application_digest:
        return []
    text = f"The task was cleared, but the application has not changed since attempt {replaced.epoch}."
    advice = 'To run a fix, change the file that the task submits, then clear. In a DAG bundle, clear with "run on latest version".'
    return [coded(f"{text} {advice}", "CKP103")]


def given_up(before: State, state: State, launch: Launch) -> list[str]:
    """Say which work ``launch`` gives up because a clear discarded what Airflow had stored for the task, and how to keep it.

    Empty if the run had finished, has completed no checkpoint, or continues from a restore. ``before`` is the state before the launch.
    """
    run, point = before.run(launch.spec.run), before.restore_point(launch.spec.application)
    checkpoint = before.checkpoint(point.id) if point and point.id is not None else None
    if run is None or run.outcome == "finished" or checkpoint is None or point == run.started_from:
        return []
    if not _opened_branch(state, launch, previous(state, launch)):
        return []
    stages = work.own_stages(checkpoint.states, run.key)
    held = work.in_words(stages) if stages else plural(len(checkpoint.states), "state")
    text = f"GIVES UP chk-{checkpoint.id} of {title(state, run.key)}: {held}. The clear discarded what Airflow had stored for this task, so"
    keep = f"To keep this work, now or until its retention ends: `{restore(state, f'chk-{checkpoint.id}')}`."
    next_time = 'To keep it at the next clear: tick "keep task state", or write on_clear="continue"'
    return [coded(f"{text} the run starts again from where it started. {keep} {next_time}", "CKP118")]


# -- the whole story ---------------------------------------------------------------------------------------------------


def _story(state: State, launch: Launch, restored: Restored, seen: StoryFacts) -> list[str]:
    before = previous(state, launch)
    if before is None and restored.point is None:
        return _from_nothing(state, launch, seen)
    attempt = state.attempt_of(before.number) if before else None
    epoch = next((record.epoch for record in state.attempts if record.launch == launch.number), state.last_epoch + 1)
    head = f"RESTORE {title(state, launch.spec.run)}: try {launch.spec.try_number}, attempt {epoch}"
    candidates = (
        [] if restored.point is None and _opened_branch(state, launch, before) else _candidates(restored, launch.at)
    )
    return [
        headline(head, "CKP101"),
        labelled("event", _event(state, launch, before, seen)),
        *out_of_memory.memory_lines(state, before, launch),
        *_fenced(before, attempt),
        *candidates,
        labelled("continues", _continuation(state, launch, attempt, restored, seen)),
    ]


def _event(state: State, launch: Launch, before: Launch | None, seen: StoryFacts) -> str:
    if before is None:
        return f'first attempt of this run; restore="{launch.spec.restore}"'
    kind = "clear" if cleared(state, launch) else "retry"
    restart = "; starts again from where the run started" if _opened_branch(state, launch, before) else ""
    return f"{kind}: {_previous_end(before, state.attempt_of(before.number), seen, launch.at)}{restart}"


def _opened_branch(state: State, launch: Launch, before: Launch | None) -> bool:
    """Return whether this launch opened a branch: it ignores the work of the run so far."""
    return before is not None and launch.branch != before.branch and state.branch.token == launch.spec.token


def _previous_end(before: Launch, attempt: AttemptRecord | None, seen: StoryFacts, now: str) -> str:
    """Return how the launch before this one ended, as far as that is known."""
    stop = f", told to stop ({before.stop})" if before.stop else ""
    if attempt is None:
        if before.outcome:
            return f"the driver of try {before.latest_try} {_launch_ended(before, now)} before it attached{stop}"
        return f"no driver of try {before.latest_try} has attached{stop}"
    name = f"attempt {attempt.epoch}"
    if attempt.outcome:
        return f"{name} {how_it_ended(attempt.outcome, attempt.exit_code, when(attempt.ended_at, now))}{stop}"
    known = f", last heartbeat {when(seen.beat.at, now)}" if seen.beat else ""
    known = ": it is still running and is replaced" if seen.alive else known
    return f"{name} has not recorded its end{known}{stop}"


def _launch_ended(launch: Launch, now: str) -> str:
    """Return how a driver ended that never attached."""
    return how_it_ended(launch.outcome or "", launch.exit_code, when(launch.ended_at, now))


def _fenced(before: Launch | None, attempt: AttemptRecord | None) -> list[str]:
    if before is None or (attempt.outcome if attempt else before.outcome):
        return []
    name = f"attempt {attempt.epoch}" if attempt else f"the launch of try {before.latest_try}"
    return [labelled("fenced", f"{name}; its later writes are refused")]


def previous(state: State, launch: Launch) -> Launch | None:
    """Return the launch of the same run before this one."""
    earlier = (
        record for record in state.launches if record.spec.run == launch.spec.run and record.number < launch.number
    )
    return max(earlier, key=lambda record: record.number, default=None)


def cleared(state: State, launch: Launch) -> bool:
    """Return whether a clear of the task caused this launch, and not a retry."""
    before = previous(state, launch)
    return before is not None and before.spec.token.generation != launch.spec.token.generation


# -- candidates --------------------------------------------------------------------------------------------------------


def _candidates(restored: Restored, now: str) -> list[str]:
    width = max((len(_name(candidate)) for candidate in restored.candidates), default=0) + 2
    texts = list(_candidate_texts(restored, width, now))
    return [labelled("" if index else "candidates", text) for index, text in enumerate(texts or ["none"])]


def _candidate_texts(restored: Restored, width: int, now: str) -> Iterator[str]:
    """Yield the candidates, newest first: unsealed checkpoints, the chosen checkpoint, older ones; a few of each."""
    rejected, older = _of(restored, "rejected"), _of(restored, "older")
    for candidate in rejected[:SHOWN_REJECTED]:
        yield f"{_name(candidate):<{width}}rejected: {candidate.why} ({_why_unsealed(candidate)})"
    if len(rejected) > SHOWN_REJECTED:
        yield f"and {len(rejected) - SHOWN_REJECTED} more that were never sealed"
    for candidate in _of(restored, "chosen"):
        because = f", {candidate.why}" if candidate.why else ""
        yield f"{_name(candidate):<{width}}CHOSEN{because}: {_verified(candidate, now)}"
    if restored.point and not restored.chosen:
        unlisted = "of another history" if restored.point.pointer else "not listed any more"
        yield f"{restored.point}  CHOSEN: {unlisted}"
    for candidate in older[:SHOWN_OLDER]:
        yield f"{_name(candidate):<{width}}older, {candidate.why or 'not examined'}"
    if len(older) > SHOWN_OLDER:
        yield f"and {len(older) - SHOWN_OLDER} older ones"


def _of(restored: Restored, verdict: str) -> list[Candidate]:
    return [candidate for candidate in restored.candidates if candidate.verdict == verdict]


def _name(candidate: Candidate) -> str:
    return f"chk-{candidate.checkpoint.id}"


def _why_unsealed(candidate: Candidate) -> str:
    checkpoint = candidate.checkpoint
    return f"{checkpoint.reason or checkpoint.status} at {at_barrier(checkpoint.barrier)}"


def _verified(candidate: Candidate, now: str) -> str:
    checkpoint = candidate.checkpoint
    kinds = [state.kind for state in checkpoint.states]
    held = [plural(kinds.count(kind), kind_in_words(kind)) for kind in sorted(set(kinds))]
    verdict = f"all {plural(candidate.files, 'file')} there, sizes match" if candidate.files else "no files"
    files = [] if candidate.files is None else [verdict]
    return ", ".join([sealed(when(checkpoint.completed_at, now)), *held, size(checkpoint.bytes), *files])


# -- where it goes on --------------------------------------------------------------------------------------------------


def _continuation(
    state: State, launch: Launch, attempt: AttemptRecord | None, restored: Restored, seen: StoryFacts
) -> str:
    chosen = restored.chosen
    if restored.point is None:
        return (
            f"from nothing: {f'every stage is computed, and {QUERIES}' if state.queries else 'everything is computed'}"
        )
    if chosen is None:
        return f"from {restored.point}"
    elsewhere = restored.point is not None and restored.point.pointer is not None  # whose runs may have the same names
    stages = [] if elsewhere else work.own_stages(chosen.checkpoint.states, launch.spec.run)
    if not stages:
        states = [state.uid for state in chosen.checkpoint.states if state.kind not in OF_RUN]
        origin = f"with {', '.join(states)} of {restored.point}" if states else f"from {restored.point}"
        return f"{origin}; stages belong to their run and are computed"
    after = at_barrier(chosen.checkpoint.barrier or stages[-1].measures.barrier)
    stored = f"Stored: {work.in_words(stages)}; reused where the program and its inputs did not change"
    return f"after {after}. {stored}{_not_stored(attempt, restored, seen)}"


def _not_stored(attempt: AttemptRecord | None, restored: Restored, seen: StoryFacts) -> str:
    """Return the time between the chosen checkpoint, or the start of the attempt before, and the last sign of that attempt.

    Before its start nothing was computed: the job may have waited for days.
    """
    chosen = restored.chosen
    last = (attempt and attempt.ended_at) or (seen.beat.at if seen.beat else "")
    if chosen is None or attempt is None or attempt.outcome == "finished" or not last:
        return ""
    sealed_at = chosen.checkpoint.completed_at
    since = f"since {restored.point}" if sealed_at >= attempt.at else f"of attempt {attempt.epoch}"
    return f". Not stored: {duration(between(max(sealed_at, attempt.at), last))} {since}"


# -- told again --------------------------------------------------------------------------------------------------------


def _sibling(state: State, attempt: AttemptRecord | None) -> AttemptRecord | None:
    """Return the attempt before this one under the same launch: a cluster may start its driver again."""
    if attempt is None:
        return None
    siblings = (
        sibling for sibling in state.attempts if sibling.launch == attempt.launch and sibling.epoch < attempt.epoch
    )
    return max(siblings, key=lambda sibling: sibling.epoch, default=None)


def _branch_lines(state: State, launch: Launch) -> list[str]:
    """Say who opened the branch of the launch. This is known of the newest branch only."""
    branch = state.branch
    if branch.number != launch.branch or branch.token is None or branch.token == launch.spec.token:
        return []
    return [labelled("went back", f"to {branch.base or 'nothing'}, {day_and_time(branch.at)}: {branch.reason}")]


def _since(state: State, launch: Launch, attempt: AttemptRecord | None) -> Iterator[str]:
    """Yield the checkpoints of the attempt, and its end."""
    if attempt is None:
        if launch.outcome:
            yield labelled("since", f"the driver {_launch_ended(launch, '')} before it attached")
            if cause := out_of_memory.in_words({launch.cause}):
                yield labelled("cause", cause)
            return
        yield labelled(
            "since", "no driver has attached" if launch is state.current_launch() else "no driver ever attached"
        )
        return
    checkpoints = state.checkpoints_of(attempt.epoch)
    completed = [f"chk-{checkpoint.id}" for checkpoint in checkpoints if checkpoint.completed_at]
    yield labelled("completed", some(completed) or "no listed checkpoint")
    if stages := work.reused_stages(state, attempt, launch.spec.run):
        yield labelled("reused", work.in_words(stages))
    aborted = [checkpoint for checkpoint in checkpoints if checkpoint.status == ABORTED]
    for checkpoint in aborted[-SHOWN_REJECTED:]:
        yield labelled("aborted", f"chk-{checkpoint.id} at {at_barrier(checkpoint.barrier)}: {checkpoint.abort_cause}")
    if len(aborted) > SHOWN_REJECTED:
        yield labelled("", f"and {len(aborted) - SHOWN_REJECTED} older ones")
    yield labelled("ended", _ending(state, launch, attempt))
    if cause := out_of_memory.in_words({attempt.cause}):
        yield labelled("cause", cause)


def _ending(state: State, launch: Launch, attempt: AttemptRecord) -> str:
    stop = f"; told to stop ({launch.stop})" if launch.stop else ""
    if attempt.outcome:
        return f"{how_it_ended(attempt.outcome, attempt.exit_code, day_and_time(attempt.ended_at))}{stop}"
    if not state.over(attempt.epoch):
        return f"not yet, according to the journal{stop}"
    later = [
        other for other in state.attempts if other.epoch > attempt.epoch and other.application == attempt.application
    ]
    by = f"attempt {later[0].epoch}, {day_and_time(later[0].at)}" if later else "a newer launch, or a restore"
    return f"fenced by {by}{stop}"
