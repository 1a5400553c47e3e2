"""The outcomes of a request for a checkpoint that a poll of the journal can find. Runs anywhere."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint


class Awaited(enum.StrEnum):
    """The stage of a checkpoint for which a caller waits."""

    ACKNOWLEDGED = "acknowledged"  # all applications have acknowledged it
    COMPLETED = "completed"
    COMMITTED = "committed"  # completed, and every participant was told
    PUBLISHED = "published"  # completed, and the savepoint is published at its target, even if its driver died
    ENDED = "ended"  # a stop: the savepoint is published, and the attempt has ended


@dataclass(frozen=True)
class Outcome:
    """The result of a poll. ``over``: no later poll changes it."""

    over: ClassVar[bool] = False

    def __init_subclass__(cls, *, over: bool = False) -> None:
        cls.over = over


@dataclass(frozen=True)
class CheckpointOutcome(Outcome):
    """The result of a poll that found the checkpoint of the request."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class InQueue(Outcome):
    """The request waits for others. ``turn`` 1 is next, of ``length``."""

    turn: int
    length: int


@dataclass(frozen=True)
class Pending(CheckpointOutcome):
    """The driver takes the checkpoint at its next barrier. ``beat`` is the driver's newest, None if none is seen."""

    beat: Beat | None


class DriverLost(CheckpointOutcome):
    """The checkpoint needs its driver, which has been silent for too long. ``resolve`` aborts or completes it."""


class Ending(CheckpointOutcome):
    """The savepoint of a stop is completed, and its attempt has not ended yet."""


class Committing(CheckpointOutcome):
    """The checkpoint is completed, and the driver has not confirmed yet that every participant was told."""


@dataclass(frozen=True)
class Unconfirmed(CheckpointOutcome, over=True):
    """Completed, but its driver will not confirm the commits any more, because of ``why``. A restore notifies the participants."""

    why: str


@dataclass(frozen=True)
class Unreadable(Outcome):
    """The poll failed, and the request still exists. ``error`` is the first error since the last successful poll."""

    error: errors.CheckpointError


class Acknowledged(CheckpointOutcome, over=True):
    """All applications have acknowledged the checkpoint, and it is not sealed yet."""


class Completed(CheckpointOutcome, over=True):
    """The checkpoint is completed; it may have been deleted since."""


@dataclass(frozen=True)
class Ended(CheckpointOutcome, over=True):
    """The savepoint of a stop is completed, and its attempt has ended; ``attempt_outcome`` is None if it was replaced."""

    attempt_outcome: str | None


@dataclass(frozen=True)
class NotEnded(CheckpointOutcome, over=True):
    """The savepoint of a stop is completed, but its attempt does not end, because of ``why``."""

    why: str


class Aborted(CheckpointOutcome, over=True):
    """The checkpoint was aborted; its ``reason`` and ``details`` say why."""


@dataclass(frozen=True)
class Dropped(Outcome, over=True):
    """The request was taken out of the queue."""

    why: str


@dataclass(frozen=True)
class RequestRefused(Outcome, over=True):
    """The request was refused; nothing was written."""

    error: errors.Refused
