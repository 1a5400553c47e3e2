"""Why there is a new attempt and where it goes on: what stands first in a task's log. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_checkpoint_provider.checkpoint.heartbeat import Beat
from airflow_checkpoint_provider.checkpoint.metadata import Seal, StateSnapshot
from airflow_checkpoint_provider.checkpoint.restoring import Candidate, Restored
from airflow_checkpoint_provider.checkpoint.state import Attempt, Launch, State
from airflow_checkpoint_provider.checkpoint.texts.units import (
    ago,
    between,
    brief,
    clock,
    duration,
    plural,
    size,
    some,
    when,
)
from airflow_checkpoint_provider.checkpoint.texts.words import (
    ENDED,
    at_barrier,
    cleared,
    coded,
    command,
    exit_code,
    headline,
    labelled,
    previous,
    title,
)

SHOWN_REJECTED, SHOWN_OLDER = 5, 3


@dataclass(frozen=True)
class Seen:
    """What was seen besides the journal: where the store is, the newest beat of the driver that stood in the way, whether it
    was alive, and what time it is now."""

    root: str = ""
    beat: Beat | None = None
    alive: bool = False
    now: str = ""


NOTHING_SEEN = Seen()


def launch_story(
    before: State, state: State, launch: Launch, restored: Restored, seen: Seen = NOTHING_SEEN
) -> list[str]:
    """What a task tells after it has planned or adopted ``launch``: ``before`` is the state it decided on, ``state`` what
    that became, ``restored`` the point it verified."""
    if launch.adopted_by and before.launch(launch.number):
        return [_adopted(state, launch, seen)]
    return _story(state, launch, restored, seen)


def restore_story(state: State, restored: Restored, seen: Seen = NOTHING_SEEN) -> list[str]:
    """The same for a script without Airflow, whose launch and attempt are already in ``state``."""
    launch = state.current_launch()
    return _story(state, launch, restored, seen) if launch else []


def looking(state: State, seconds: float) -> str:
    """Before an observer waits for heartbeats; ``seconds`` at most."""
    launch = state.current_launch()
    attempt = state.attempt_of(launch.number) if launch else None
    who = f"attempt {attempt.epoch}" if attempt else "the launch before this one"
    return coded(f"{state.job}: looking whether {who} still lives ({ago(seconds)} at most)", "CKP113")


def driver_says(beat: Beat) -> list[str]:
    """The story's last line, which only the driver knows."""
    said = [f"attached {clock(beat.attached)}"] if beat.attached else []
    said += [beat.application] if beat.application else []
    said += [f"reused {some(beat.reused)}"] if beat.reused else []
    said += [f"now running {_doing(beat)}"] if beat.doing else []
    return [labelled("driver says", "; ".join(said) or "nothing yet")]


# -- short forms -------------------------------------------------------------------------------------------------------


def _adopted(state: State, launch: Launch, seen: Seen) -> str:
    attempt = state.attempt_of(launch.number)
    who = (
        f"attempt {attempt.epoch}" if attempt else f"the launch of try {launch.try_number}, whose driver still starts,"
    )
    about = [f"heartbeat {ago(between(seen.beat.at, seen.now))} ago"] if seen.beat and seen.now else []
    about += [_doing(seen.beat)] if seen.beat and seen.beat.doing else []
    known = f" ({', '.join(about)})" if about else ""
    return coded(
        f"ADOPT {title(state)}: {who} is alive{known}. Not submitted again; this try follows it.",
        "CKP110",
    )


def _doing(beat: Beat) -> str:
    return beat.doing + (f" {beat.fraction * 100:.0f} %" if beat.fraction is not None else "")


def _from_nothing(state: State, launch: Launch, seen: Seen) -> list[str]:
    """The first attempt of a run, and nothing to start from."""
    asked = f"RESTORE {title(state, launch.run)}: first attempt of this run,"
    if launch.restore == "none":
        return [coded(f'{asked} starts from nothing (restore="none").', "CKP100")]
    if state.scope:
        return [coded(f'{asked} starts from nothing (restore="latest" found no history, none expected).', "CKP100")]
    has = "no history" if launch.number == 1 else "no completed checkpoint"
    under = f" under {seen.root}" if seen.root else ""
    warning = f"STARTS FROM NOTHING: job '{state.job}' has {has}{under}."
    return [coded(f"{asked} {warning} If you expected one, stop now: {command(state)} jobs", "CKP102")]


# -- the whole story -----------------------------------------------------------------------------------------------------


def _story(state: State, launch: Launch, restored: Restored, seen: Seen) -> list[str]:
    before = previous(state, launch)
    if before is None and restored.point is None:
        return _from_nothing(state, launch, seen)
    attempt = state.attempt_of(before.number) if before else None
    epoch = next((one.epoch for one in state.attempts if one.launch == launch.number), state.last_epoch + 1)
    headed = f"RESTORE {title(state, launch.run)}: try {launch.try_number}, attempt {epoch}"
    looked = [] if restored.point is None and _again(state, launch, before) else _candidates(restored, launch.at)
    return [
        headline(headed, "CKP101"),
        labelled("event", _event(state, launch, before, seen)),
        *_fenced(before, attempt),
        *looked,
        labelled("continues", _where(launch, attempt, restored, seen)),
    ]


def _event(state: State, launch: Launch, before: Launch | None, seen: Seen) -> str:
    if before is None:
        return f'first attempt of this run; restore="{launch.restore}"'
    kind = "clear" if cleared(state, launch) else "retry"
    again = "; starts again from where the run started" if _again(state, launch, before) else ""
    return f"{kind}: {_became(before, state.attempt_of(before.number), seen, launch.at)}{again}"


def _again(state: State, launch: Launch, before: Launch | None) -> bool:
    """Whether this launch of a run opened a branch: nothing that the run did so far is considered."""
    return before is not None and launch.branch != before.branch and state.branch.token == launch.token


def _became(before: Launch, attempt: Attempt | None, seen: Seen, now: str) -> str:
    """What became of the launch before this one, as far as anyone knows."""
    told = f", told to stop ({before.stop})" if before.stop else ""
    if attempt is None:
        return f"no driver of try {before.latest_try} has attached{told}"
    who = f"attempt {attempt.epoch}"
    if attempt.how:
        code = "" if attempt.how == "finished" else f" ({exit_code(attempt)})"
        return f"{who} {ENDED.get(attempt.how, attempt.how)} {when(attempt.ended_at or '', now)}{code}{told}"
    if seen.alive:
        return f"{who} is alive and is replaced{told}"
    last = f"last heartbeat {when(seen.beat.at, now)}, " if seen.beat else ""
    return f"{who} vanished ({last}{exit_code(attempt)}){told}"


def _fenced(before: Launch | None, attempt: Attempt | None) -> list[str]:
    if before is None or (attempt and attempt.how):
        return []
    who = f"attempt {attempt.epoch}" if attempt else f"the launch of try {before.latest_try}"
    return [labelled("fenced", f"{who}; whatever it still sends is refused from here on")]


# -- candidates ----------------------------------------------------------------------------------------------------------


def _candidates(restored: Restored, now: str) -> list[str]:
    width = max((len(f"chk-{one.checkpoint.id}") for one in restored.candidates), default=0) + 2
    texts = list(_considered(restored, width, now))
    return [labelled("" if index else "candidates", text) for index, text in enumerate(texts or ["none"])]


def _considered(restored: Restored, width: int, now: str) -> Iterator[str]:
    """Newest first: what never was a checkpoint, the chosen one, older ones; few of each."""
    rejected, older = _of(restored, "rejected"), _of(restored, "older")
    for one in rejected[:SHOWN_REJECTED]:
        yield f"{_name(one):<{width}}rejected: {one.why} ({_why_unsealed(one)})"
    if len(rejected) > SHOWN_REJECTED:
        yield f"and {len(rejected) - SHOWN_REJECTED} more that were never sealed"
    for one in _of(restored, "chosen"):
        yield f"{_name(one):<{width}}CHOSEN{f', {one.why}' if one.why else ''}: {_verified(one, now)}"
    for one in older[:SHOWN_OLDER]:
        yield f"{_name(one):<{width}}older, not examined"
    if len(older) > SHOWN_OLDER:
        yield f"and {len(older) - SHOWN_OLDER} more older ones"


def _of(restored: Restored, verdict: str) -> list[Candidate]:
    return [one for one in restored.candidates if one.verdict == verdict]


def _chosen(restored: Restored) -> Candidate | None:
    return next(iter(_of(restored, "chosen")), None)


def _name(one: Candidate) -> str:
    return f"chk-{one.checkpoint.id}"


def _why_unsealed(one: Candidate) -> str:
    barrier = at_barrier(one.checkpoint.barrier)
    return f"{one.checkpoint.reason or one.checkpoint.status} at {barrier}"


def _verified(one: Candidate, now: str) -> str:
    checkpoint = one.checkpoint
    kinds = [state.kind for state in checkpoint.states]
    held = [plural(kinds.count(kind), kind) for kind in sorted(set(kinds))]
    files = f"all {plural(one.files, 'file')} there, sizes match" if one.files else "no files"
    return ", ".join([f"sealed {when(checkpoint.completed_at, now)}", *held, size(checkpoint.bytes), files])


# -- where it goes on ------------------------------------------------------------------------------------------------------


def _where(launch: Launch, attempt: Attempt | None, restored: Restored, seen: Seen) -> str:
    if restored.seal is None or restored.point is None:
        return "from nothing: everything is computed"
    stages = own_stages(restored.seal, launch.run)
    if not stages:
        values = [uid for uid, one in restored.seal.states.items() if one.kind == "value"]
        kept = f"with {', '.join(values)} of {restored.point}" if values else f"from {restored.point}"
        return f"{kept}; stages belong to their run and are computed"
    work = sum(one.measures.work_s for one in stages)
    parts = some([f"{one.uid} {brief(one.measures.work_s)}" for one in stages])
    saved = f"Not run again: {duration(work)} ({parts})"
    return f"after {_after(restored, stages)}. {saved}{_to_repeat(attempt, restored, seen)}"


def own_stages(seal: Seal, run: str) -> list[StateSnapshot]:
    """The stages of a run in the order in which they were computed; another run's are computed anew."""
    stages = [one for one in seal.states.values() if one.kind == "stage" and one.run == run]
    return sorted(stages, key=lambda one: (one.measures.checkpoint, one.uid))


def _after(restored: Restored, stages: list[StateSnapshot]) -> str:
    chosen = _chosen(restored)
    return at_barrier((chosen.checkpoint.barrier if chosen else "") or stages[-1].measures.barrier)


def _to_repeat(attempt: Attempt | None, restored: Restored, seen: Seen) -> str:
    """From the chosen checkpoint to the last that was heard of the attempt before."""
    chosen = _chosen(restored)
    last = (attempt and attempt.ended_at) or (seen.beat.at if seen.beat else "")
    if chosen is None or attempt is None or attempt.how == "finished" or not last:
        return ""
    return f". To repeat: {duration(between(chosen.checkpoint.completed_at, last))} since {restored.point}"
