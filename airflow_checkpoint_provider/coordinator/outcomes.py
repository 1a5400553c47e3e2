"""What becomes of a request for a checkpoint: the outcomes that a look at the journal can have. Runs anywhere."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.protocol.state import Checkpoint


class Awaited(enum.StrEnum):
    """The stage of a checkpoint for which a caller waits."""

    ACKNOWLEDGED = "acknowledged"  # all applications have acknowledged it
    COMPLETED = "completed"
    COMMITTED = "committed"  # completed, and every participant was told
    PUBLISHED = "published"  # completed, and the savepoint is published at its target, even if its driver died
    ENDED = "ended"  # a stop: the savepoint is published, and the attempt has ended


@dataclass(frozen=True)
class Outcome:
    """The result of a look. ``over``: no later look changes it."""

    over: ClassVar[bool] = False


@dataclass(frozen=True)
class InQueue(Outcome):
    """The request waits for others. ``place`` 1 is next, of ``length``."""

    place: int
    length: int


@dataclass(frozen=True)
class Pending(Outcome):
    """The driver takes the checkpoint at its next barrier. ``beat`` is the driver's newest, None if none is seen."""

    checkpoint: Checkpoint
    beat: Beat | None


@dataclass(frozen=True)
class DriverLost(Outcome):
    """The checkpoint needs its driver, which has been silent for too long. ``resolve`` aborts or completes it."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class Ending(Outcome):
    """The savepoint of a stop is completed, and its attempt has not ended yet."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class Committing(Outcome):
    """The checkpoint is completed, and the driver has not confirmed yet that every participant was told."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class Unconfirmed(Outcome):
    """Completed, but its driver will not confirm the commits any more, because of ``why``. A restore notifies the participants."""

    over: ClassVar[bool] = True
    checkpoint: Checkpoint
    why: str


@dataclass(frozen=True)
class Unreadable(Outcome):
    """The look failed, and the request still exists. ``error`` is the first error since the last successful look."""

    error: errors.CheckpointError


@dataclass(frozen=True)
class Acknowledged(Outcome):
    """All applications have acknowledged the checkpoint, and it is not sealed yet."""

    over: ClassVar[bool] = True
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Completed(Outcome):
    """The checkpoint is completed; it may have been deleted since."""

    over: ClassVar[bool] = True
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Ended(Outcome):
    """The savepoint of a stop is completed, and its attempt has ended; ``how`` is None if it was replaced."""

    over: ClassVar[bool] = True
    checkpoint: Checkpoint
    how: str | None


@dataclass(frozen=True)
class NotEnded(Outcome):
    """The savepoint of a stop is completed, but its attempt does not end, because of ``why``."""

    over: ClassVar[bool] = True
    checkpoint: Checkpoint
    why: str


@dataclass(frozen=True)
class Aborted(Outcome):
    """The checkpoint was aborted; its ``reason`` and ``words`` say why."""

    over: ClassVar[bool] = True
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Dropped(Outcome):
    """The request was taken out of the queue."""

    over: ClassVar[bool] = True
    why: str


@dataclass(frozen=True)
class Refused(Outcome):
    """The request was refused; nothing was written."""

    over: ClassVar[bool] = True
    error: errors.Refused
