"""What several texts and errors say the same way: titles, labels, codes, commands to type. Runs anywhere."""

from __future__ import annotations

import shlex

from airflow_checkpoint_provider.protocol.metadata import Measures
from airflow_checkpoint_provider.protocol.state import Attempt, Checkpoint, Launch, State

CODE_COLUMN = 112
LABEL = 12
ENDED = {
    "finished": "finished", "failed": "failed", "cancelled": "was cancelled", "suspended": "was suspended", "lost": "was lost",
}  # fmt: skip


def coded(text: str, code: str, column: int = 0) -> str:
    """``text`` and its code, which stands in ``column`` or, behind a longer text, two blanks after it."""
    return f"{text:<{max(0, column - 2)}}  [{code}]"


def headline(text: str, code: str) -> str:
    return coded(text, code, CODE_COLUMN)


def labelled(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}"


def title(state: State, run: str = "") -> str:
    """``flights_etl.delays, run scheduled__2026-11-20``."""
    item = f", item {state.item}" if state.item else ""
    return f"{state.job}{item}" + (f", run {run}" if run else "")


def command(state: State) -> str:
    """What a person types: jobs that Airflow launched are found through its connection."""
    by_airflow = bool(state.launches and state.launches[-1].token.dag)
    return "airflow checkpoints" if by_airflow else "checkpoints"


def show(state: State, run: str) -> str:
    """The command that prints the table of a run again."""
    return f"{command(state)} show {state.job} {shlex.quote(state.scope or run)}{_item(state)}"


def restore(state: State, where: str) -> str:
    """The command that lets this history go on from ``where``, and no other history of its job."""
    run = f" {shlex.quote(state.scope)}" if state.scope else ""
    return f"{command(state)} restore {state.job}{run}{_item(state)} --from {where}"


def _item(state: State) -> str:
    return f" --item {shlex.quote(state.item)}" if state.item else ""


def superseded(state: State, run: str, launch: Launch | None = None) -> str:
    """``launch`` is whose later try it was, where that is known."""
    who = f"try {launch.latest_try} of this run" if launch else "a later try of this run, or a restore,"
    return (
        f"{title(state, run)}: {who} has taken over; this try ends, without retry."
        " If the DAG run was deleted and made again: give it another run id"
    )


def previous(state: State, launch: Launch) -> Launch | None:
    """The launch of the same run before this one."""
    before = (one for one in state.launches if one.run == launch.run and one.number < launch.number)
    return max(before, key=lambda one: one.number, default=None)


def cleared(state: State, launch: Launch) -> bool:
    """Whether a person's clear brought this launch about, and not a retry."""
    before = previous(state, launch)
    return before is not None and before.token.generation != launch.token.generation


def at_barrier(barrier: str) -> str:
    """``stage 'clean'``, or what the other barriers are."""
    return {"": "a barrier", "end": "the end of the script", "checkpoint()": "job.checkpoint()"}.get(barrier, barrier)


def sealed(at: str) -> str:
    """``at`` is empty for what is known by its directory alone."""
    return f"sealed {at}" if at else "a savepoint"


def exit_code(attempt: Attempt) -> str:
    return f"exit code {attempt.exit_code}" if attempt.exit_code is not None else "exit code unknown"


def new_in(checkpoint: Checkpoint) -> tuple[Measures, ...]:
    """The measures of the states that were snapshotted for this checkpoint."""
    return tuple(one.measures for one in checkpoint.states if one.new)


def sync_s(checkpoint: Checkpoint) -> float:
    return sum(one.sync_s for one in new_in(checkpoint))


def new_bytes(checkpoint: Checkpoint) -> int:
    return sum(one.new_bytes for one in new_in(checkpoint))
