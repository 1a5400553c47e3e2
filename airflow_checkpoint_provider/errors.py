"""Every error a person can meet, with its stable code. Runs anywhere.

One root, ``CheckpointError``; the leaves also subclass the builtin that a caller would catch, carry what they are about as
attributes, and their text ends in what to do next. ``code`` is searchable in the documentation; codes are unique (tested).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar


class CheckpointError(Exception):
    """Root of all errors of this package.

    ``permanent`` says that trying again cannot mend it: an Airflow task fails without retry, a driver exits with 3.
    """

    code: ClassVar[str] = "CKP900"
    permanent: ClassVar[bool] = False

    def __init__(self, message: str, **about: Any) -> None:
        super().__init__(message)
        self.message = message
        self.about = about

    def __str__(self) -> str:
        return f"{self.message}  [{self.code}]"


# -- what the caller wrote ---------------------------------------------------------------------------------------------


class InvalidName(CheckpointError, ValueError):
    """A job id, uid, item or pointer that cannot be used as written."""

    code = "CKP601"
    permanent = True


class InvalidConfig(CheckpointError, ValueError):
    """A number, duration or option that cannot hold; the text says what to write instead."""

    code = "CKP602"
    permanent = True


class NotSupportedYet(CheckpointError, NotImplementedError):
    """An option or call that this version refuses by name."""

    code = "CKP603"
    permanent = True


class UnsupportedType(CheckpointError, TypeError):
    """A column that Parquet cannot store."""

    code = "CKP604"
    permanent = True


class WrongUse(CheckpointError, RuntimeError):
    """A call at a moment or in a way that cannot work: one uid twice, ``spark.stop()`` inside ``with``, Spark Connect."""

    code = "CKP605"
    permanent = True


class VersionMismatch(CheckpointError, RuntimeError):
    """Two parts that must be of one version are not: pyspark and pyspark-client, package and driver archive."""

    code = "CKP606"
    permanent = True


class NotInstalled(CheckpointError, ImportError):
    """Something that checkpoints need is not installed here; the text says what to add."""

    code = "CKP607"
    permanent = True


# -- the store ---------------------------------------------------------------------------------------------------------


class StoreError(CheckpointError):
    """The checkpoint storage did not do what was asked."""

    code = "CKP610"


class StoreDenied(StoreError, PermissionError):
    """The store understood and refused. Never taken for "absent"."""

    code = "CKP611"


class StoreMisconfigured(StoreError, ValueError):
    """This is no store, not the one meant, or one without put-if-absent."""

    code = "CKP612"
    permanent = True


class StoreUnavailable(StoreError, ConnectionError):
    """The store does not answer; trying again may help."""

    code = "CKP613"


class CommitStateUnknown(StoreError, TimeoutError):
    """A put was not answered in time: it may or may not have happened, or may still happen. Nothing is cleaned up."""

    code = "CKP614"


# -- the journal and what it names -------------------------------------------------------------------------------------


class FormatTooNew(CheckpointError, ValueError):
    """Written by a newer version of this package."""

    code = "CKP620"
    permanent = True


class Damaged(CheckpointError, ValueError):
    """Something that was written whole is not whole any more: missing, shorter, other bytes."""

    code = "CKP621"
    permanent = True


class OtherIncarnation(CheckpointError, RuntimeError):
    """The history was deleted by hand and begun anew under a running process."""

    code = "CKP622"
    permanent = True


class HistoryGone(CheckpointError, LookupError):
    """An earlier try wrote to a history that is not there any more."""

    code = "CKP623"
    permanent = True


class CheckpointNotFound(CheckpointError, LookupError):
    """No such checkpoint: never made, aborted, or deleted since."""

    code = "CKP624"
    permanent = True


class SavepointDisposed(CheckpointNotFound):
    """There was a savepoint, and somebody disposed of it; ``about`` says who and when."""

    code = "CKP442"


# -- refusals of the state machine -------------------------------------------------------------------------------------


class Refused(CheckpointError, RuntimeError):
    """A command that contradicts what the journal holds."""

    code = "CKP630"


class Superseded(Refused):
    """A later try of the run, or a restore, has taken over."""

    code = "CKP112"
    permanent = True


class AlreadyFinished(Refused):
    """The run had already finished; its worker was lost afterwards. For the task this is success."""

    code = "CKP111"


class JobAlreadyRunning(Refused):
    """Another run of the job, or another driver of the launch, is alive."""

    code = "CKP131"


class JobSuspended(Refused):
    """The job was stopped with a savepoint; somebody must resume it."""

    code = "CKP130"


class TwoOwners(Refused):
    """Two tasks share one job id."""

    code = "CKP402"
    permanent = True


class OlderRun(Refused):
    """A run older than what the state already holds."""

    code = "CKP403"
    permanent = True


class StateRequired(Refused, LookupError):
    """``require_state`` or ``on_clear="continue"``, and there is nothing to start from."""

    code = "CKP404"
    permanent = True


class Stopping(Refused):
    """The launch that stands was asked to stop and has not ended yet."""

    code = "CKP132"


class NotStopped(Refused, TimeoutError):
    """The savepoint of a stop is completed and the job is suspended, but its attempt has not ended; ``pointer`` is the savepoint."""

    code = "CKP135"


class Fenced(Refused):
    """This attempt is over: a newer launch, attempt or branch stands. The driver stops itself with exit code 79."""

    code = "CKP301"


class NotRunning(Refused):
    """No attempt runs that could take a checkpoint."""

    code = "CKP230"


class RunFinished(NotRunning):
    """The run whose checkpoint was asked for has finished: no driver of it will come."""

    code = "CKP236"
    permanent = True


class Busy(Refused):
    """A checkpoint is pending; ask again."""

    code = "CKP231"


class Queued(Busy):
    """The request waits in the queue for its turn; ask again."""

    code = "CKP237"


class MinPause(Busy):
    """The pause between two periodic checkpoints is not over."""

    code = "CKP238"


class TooManyRequests(Refused):
    """The queue of requests is full."""

    code = "CKP239"


class RequestDropped(Refused):
    """The request waited, and its turn did not come: its attempt ended, or too many asked. A retry asks anew."""

    code = "CKP240"


class StillPending(CheckpointError, TimeoutError):
    """Whoever waited for a checkpoint waits no longer; it has no outcome yet, and nothing was taken back."""

    code = "CKP242"


class NotPending(Refused):
    """The checkpoint has its outcome already, and it is another one than asked for."""

    code = "CKP232"


class Aborted(Refused):
    """The checkpoint that was waited for will never complete."""

    code = "CKP201"
    permanent = True


class Held(Refused):
    """Somebody may still need this checkpoint."""

    code = "CKP233"


class HistoryClosed(Refused):
    """The history is closing or closed; nothing but opening it again is accepted."""

    code = "CKP234"


class StillNeeded(Refused):
    """Something in the history runs, or is kept: it is not closed."""

    code = "CKP430"


class TooLarge(Refused):
    """The events do not fit into one entry of the journal."""

    code = "CKP235"


class Declined(CheckpointError, RuntimeError):
    """A registered object could not say its state at a barrier: the checkpoint there was aborted with its words."""

    code = "CKP241"


# -- a restored state and the job that takes it ------------------------------------------------------------------------


class NonRestoredState(Refused):
    """The checkpoint holds state that nobody claims, and nobody allowed to leave it behind."""

    code = "CKP420"
    permanent = True


class RenameConflict(Refused, ValueError):
    """Two states would have one name after ``rename``."""

    code = "CKP421"
    permanent = True


class StateNotFound(Refused, LookupError):
    """``rename``, ``allow_non_restored_state`` or an application names what the checkpoint does not hold."""

    code = "CKP422"
    permanent = True


class KindChanged(Refused, TypeError):
    """A state was restored as one kind and is asked for as another."""

    code = "CKP423"
    permanent = True


class FinishedStateMismatch(Refused):
    """What had finished when the checkpoint was taken does not fit the plan that restores it."""

    code = "CKP424"
    permanent = True


class MaxParallelismMismatch(Refused, ValueError):
    """The number of key groups of a restored state is not that of the job that takes it."""

    code = "CKP425"
    permanent = True


# -- savepoints --------------------------------------------------------------------------------------------------------


class AlreadyClaimed(Refused):
    """Somebody else owns the deletion of this savepoint; ``about`` says who."""

    code = "CKP440"
    permanent = True


class OtherSavepoint(Refused):
    """Where a savepoint is to be published lies the ``_metadata`` of another one."""

    code = "CKP441"
    permanent = True


class OrphanSavepoint(Refused):
    """The history of a savepoint was not found, so nobody can be asked whether a job needs it."""

    code = "CKP443"
    permanent = True


def all_errors(root: type[CheckpointError] = CheckpointError) -> Iterator[type[CheckpointError]]:
    """Every error class, the root first; the table of codes is made of this."""
    yield root
    for leaf in root.__subclasses__():
        yield from all_errors(leaf)
