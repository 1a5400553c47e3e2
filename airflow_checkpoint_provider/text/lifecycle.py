"""What tasks say of a checkpoint that they drive, and who asked for it. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import Checkpoint, State
from airflow_checkpoint_provider.protocol.wording import coded, title
from airflow_checkpoint_provider.text.units import between, duration

WORTH_SAYING = 0.1  # seconds in the queue, as in Flink


def request(dag: str, run: str, task: str, map_index: int, generation: int) -> str:
    """The name under which a task asks: a retry asks for what its predecessor asked for, a clear asks anew."""
    return "|".join((dag, run, task, str(map_index), str(generation)))


def triggered(state: State, checkpoint: Checkpoint, pointer: Pointer) -> str:
    """With the pointer by which a task can wait for it, or abort it: that of its history, also for a savepoint."""
    gated = "; it is gated: only a task completes it" if checkpoint.gated else ""
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
    asked = checkpoint.request.split("|")
    if len(asked) != 5:
        return "Ask for another one"
    dag, run, task = asked[:3]
    return f"Clear task {dag}.{task} of run {run} with its downstream tasks: it then asks for another one"
