"""Lines about a task that is deferred while its driver runs. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import stop, title
from airflow_checkpoint_provider.text.units import MINUTE, between, coded, day_and_time

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP115": "The task of a job was deferred, and no triggerer follows its driver. The driver goes on.",
    "CKP116": "The task of a job is deferred, and there is no sign of its driver yet. The line says what the cluster manager knows.",
}


def not_followed(state: State, follower: Beat | None, now: str) -> str | None:
    """Say since when no triggerer follows the driver of a deferred task; None if there is no such task, or a triggerer does.

    Clocks of two machines are compared here. So this decides nothing: it is for people only.
    """
    if follower is None or between(follower.at, now) <= MINUTE:
        return None
    text = (
        f"{title(state, state.scope)}: its task was deferred {day_and_time(follower.deferred_at)}, and no triggerer has followed its"
        f" driver since {day_and_time(follower.at)}. The driver goes on. If the task is still deferred, it needs a triggerer: start one with"
        " `airflow triggerer`, and check that it reaches the checkpoint storage. If the task has ended, clear it, or end the driver:"
        f" `{stop(state)}`"
    )
    return coded(printable(text), "CKP115")


def closed_to_triggerer(state: State, conn_id: str) -> str:
    """Say that only the task can read the storage, so that it looks for the driver in place of the triggerer."""
    text = (
        f"{title(state, state.scope)}: the triggerer cannot read the checkpoint storage, and has logged why. So it does not follow the"
        f" driver, and this task looks itself, every minute or two. Give the triggerer's host what connection {conn_id!r} needs there"
    )
    return coded(printable(text), "CKP115")


def asked(state: State, word: str) -> str:
    """Say what the cluster manager knows of a driver that has not attached."""
    text = f"{title(state, state.scope)}: no sign of the driver yet; the cluster manager says {word}"
    return coded(printable(text), "CKP116")


def no_answer(state: State, error: str) -> str:
    """Say that the resource manager has not answered the triggerer about a driver that has not attached."""
    text = f"{title(state, state.scope)}: no sign of the driver yet, and YARN's resource manager gave no answer ({error}); asking again"
    return coded(printable(text), "CKP116")


def not_asked(state: State, error: Exception) -> str:
    """Say that the cluster manager cannot be asked about a driver that has not attached."""
    text = (
        f"{title(state, state.scope)}: no sign of the driver yet, and the cluster manager cannot be asked ({type(error).__name__}: {error})."
        " The task waits until the driver attaches, and asks again. If the driver has died, mark the task as failed, or clear it"
    )
    return coded(printable(text), "CKP116")
