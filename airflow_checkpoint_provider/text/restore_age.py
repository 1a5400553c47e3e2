"""Lines about a run that starts from an old checkpoint. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import list_of
from airflow_checkpoint_provider.text.units import ago, between, coded, day_and_time, duration

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP105": "A run starts from a checkpoint that is older than its task wants, or whose age is not known. The task continues.",
}


def age(checkpoint: Checkpoint, now: str) -> float:
    """Return the age of a completed checkpoint in seconds."""
    return between(checkpoint.completed_at, now)


def too_old(job: str, point: Point | None, checkpoint: Checkpoint, now: str, most: float) -> str:
    """Say how old the checkpoint is from which a run starts."""
    return (
        f"{job}: this run starts from {point}, completed {day_and_time(checkpoint.completed_at)}, {ago(age(checkpoint, now))} ago;"
        f" max_restore_age= is {duration(most)}"
    )


def refused(text: str, job: str, state: State) -> str:
    """Return the text of the refusal, with what to do next."""
    return (
        f"{text}. Nothing was changed. Find out why nothing newer was completed: `{list_of(job, state)}`. To start all the same:"
        ' raise max_restore_age=, or write (…, "warn"); restore="none" starts without state'
    )


def warned(text: str) -> str:
    """Return the line of a run that starts all the same."""
    return coded(f"OLD RESTORE POINT: {text}", "CKP105")


def unknown(job: str, point: Point | None) -> str:
    """Say that the age of a savepoint is not known: no journal that this task reads lists it."""
    return coded(
        f"{job}: the age of {point} is not known, so max_restore_age= is not compared. It was named on purpose",
        "CKP105",
    )
