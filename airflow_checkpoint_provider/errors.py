"""All errors of the package, each with a stable code. Runs anywhere.

The root is ``CheckpointError``. An error also subclasses the builtin that a caller would catch. Its text says the cause, the
effect and what to do next; ``about`` holds the details as values. The meaning of a code never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar


class CheckpointError(Exception):
    """An error of this package that has no code of its own.

    The root of all errors. The first line of each docstring is what the code means: the documentation shows it. A permanent
    error cannot be mended by another try: an Airflow task fails without retry, a driver exits with 3.
    """

    code: ClassVar[str] = "CKP900"
    permanent: ClassVar[bool] = False

    def __init__(self, message: str, **about: Any) -> None:
        super().__init__(message)
        self.message = message
        self.about = about

    def __str__(self) -> str:
        return f"{self.message}  [{self.code}]"


# -- wrong input -------------------------------------------------------------------------------------------------------


class InvalidName(CheckpointError, ValueError):
    """A job id, uid, item or pointer cannot be used as written."""

    code = "CKP601"
    permanent = True


class InvalidConfig(CheckpointError, ValueError):
    """Invalid number, duration or option."""

    code = "CKP602"
    permanent = True


class NotSupportedYet(CheckpointError, NotImplementedError):
    """This version does not support the option or call."""

    code = "CKP603"
    permanent = True


class UnsupportedType(CheckpointError, TypeError):
    """Parquet cannot store the type of a column."""

    code = "CKP604"
    permanent = True


class WrongUse(CheckpointError, RuntimeError):
    """The call is not possible here or now.

    Examples: one uid twice, ``spark.stop()`` inside ``with``, Spark Connect.
    """

    code = "CKP605"
    permanent = True


class VersionMismatch(CheckpointError, RuntimeError):
    """Two parts of the installation must have the same version, but do not.

    Examples: pyspark and pyspark-client, package and driver archive.
    """

    code = "CKP606"
    permanent = True


class NotInstalled(CheckpointError, ImportError):
    """A required package or jar is not installed on this host."""

    code = "CKP607"
    permanent = True


# -- the store ---------------------------------------------------------------------------------------------------------


class StoreError(CheckpointError):
    """The checkpoint storage could not do what was asked."""

    code = "CKP610"


class StoreDenied(StoreError, PermissionError):
    """The checkpoint storage denied access. This never counts as an absent checkpoint."""

    code = "CKP611"


class StoreMisconfigured(StoreError, ValueError):
    """The location cannot hold checkpoints.

    It is no store, it is another store than the one meant, or it has no put-if-absent: two writers could both succeed.
    """

    code = "CKP612"
    permanent = True


class StoreUnavailable(StoreError, ConnectionError):
    """The checkpoint storage does not answer. Another try may help."""

    code = "CKP613"


class CommitStateUnknown(StoreError, TimeoutError):
    """The checkpoint storage did not answer in time: the write may have happened, or may still happen.

    Nothing is cleaned up. Read the result back before you act.
    """

    code = "CKP614"


# -- the journal and its checkpoints -----------------------------------------------------------------------------------


class FormatTooNew(CheckpointError, ValueError):
    """A newer version of this package wrote the data."""

    code = "CKP620"
    permanent = True


class Damaged(CheckpointError, ValueError):
    """Stored data is damaged: it was complete once, and now a file is missing, shorter or different."""

    code = "CKP621"
    permanent = True


class OtherIncarnation(CheckpointError, RuntimeError):
    """The history was deleted and created again while a process was using it."""

    code = "CKP622"
    permanent = True


class HistoryGone(CheckpointError, LookupError):
    """The history is gone, although an earlier try wrote to it."""

    code = "CKP623"
    permanent = True


class CheckpointNotFound(CheckpointError, LookupError):
    """The checkpoint does not exist: it was never taken, was aborted, or was deleted."""

    code = "CKP624"
    permanent = True


class SavepointDisposed(CheckpointNotFound):
    """The savepoint was deleted on request.

    ``about`` says by which person or task, and when.
    """

    code = "CKP442"


# -- refusals of the state machine -------------------------------------------------------------------------------------


class Refused(CheckpointError, RuntimeError):
    """The journal does not allow the command."""

    code = "CKP630"


class Superseded(Refused):
    """A later try of the run, or a restore, has replaced this try. This try ends without retry."""

    code = "CKP112"
    permanent = True


class AlreadyFinished(Refused):
    """The run had already finished when its worker was lost. Nothing is submitted; the task succeeds."""

    code = "CKP111"


class JobAlreadyRunning(Refused):
    """Another run of the job, or another driver of this launch, is running."""

    code = "CKP131"


class JobSuspended(Refused):
    """The job is suspended. It starts again after a restore."""

    code = "CKP130"


class TwoOwners(Refused):
    """Two tasks use the same job id."""

    code = "CKP402"
    permanent = True


class OlderRun(Refused):
    """The run is older than a run whose results the state already contains."""

    code = "CKP403"
    permanent = True


class StateRequired(Refused, LookupError):
    """State was required, but there is no checkpoint to start from.

    ``require_state`` and ``on_clear="continue"`` require state.
    """

    code = "CKP404"
    permanent = True


class Stopping(Refused):
    """An earlier driver was asked to stop and has not ended yet."""

    code = "CKP132"


class NotStopped(Refused, TimeoutError):
    """The job is suspended and its savepoint is complete, but the attempt has not ended.

    ``pointer`` is the savepoint.
    """

    code = "CKP135"


class Fenced(Refused):
    """This attempt was replaced or has ended. Its writes are rejected, and its driver exits with code 79."""

    code = "CKP301"


class NotRunning(Refused):
    """No attempt is running that could take a checkpoint."""

    code = "CKP230"


class RunFinished(NotRunning):
    """The run has finished. No attempt of it will take a checkpoint."""

    code = "CKP236"
    permanent = True


class Busy(Refused):
    """Another checkpoint is pending. This one can be taken afterwards."""

    code = "CKP231"


class Queued(Busy):
    """The request for a checkpoint waits in the queue."""

    code = "CKP237"


class MinPause(Busy):
    """The minimum pause between two periodic checkpoints is not over."""

    code = "CKP238"


class TooManyRequests(Refused):
    """The queue of requests for checkpoints is full."""

    code = "CKP239"


class RequestDropped(Refused):
    """The request for a checkpoint was dropped from the queue.

    Its attempt ended, or the queue was full. A retry of the task makes a new request.
    """

    code = "CKP240"


class StillPending(CheckpointError, TimeoutError):
    """The wait for a checkpoint is over, but the checkpoint is still pending. It was not aborted."""

    code = "CKP242"


class NotPending(Refused):
    """The checkpoint already has another outcome than the one asked for."""

    code = "CKP232"


class Aborted(Refused):
    """A checkpoint was aborted. If the job fails now, it restarts from the checkpoint before it."""

    code = "CKP201"
    permanent = True


class Held(Refused):
    """The checkpoint is not deleted, because something may still need it."""

    code = "CKP233"


class HistoryClosed(Refused):
    """The history is closed, or is being closed."""

    code = "CKP234"


class StillNeeded(Refused):
    """The history is not closed, because something in it runs or is kept."""

    code = "CKP430"


class TooLarge(Refused):
    """The checkpoint has more file sets than one journal entry can name."""

    code = "CKP235"


class Declined(CheckpointError, RuntimeError):
    """A registered object could not take its snapshot, so the checkpoint was aborted."""

    code = "CKP241"


# -- restored state ----------------------------------------------------------------------------------------------------


class RenameConflict(Refused, ValueError):
    """A renaming would give two states the same name."""

    code = "CKP421"
    permanent = True


class StateNotFound(Refused, LookupError):
    """The checkpoint does not contain the state or application that an option names."""

    code = "CKP422"
    permanent = True


class KindChanged(Refused, TypeError):
    """A restored state is requested as another kind, e.g. a stage as a value."""

    code = "CKP423"
    permanent = True


# -- savepoints --------------------------------------------------------------------------------------------------------


class AlreadyClaimed(Refused):
    """Another job has claimed this savepoint, or it is being deleted.

    ``about`` says by whom.
    """

    code = "CKP440"
    permanent = True


class OtherSavepoint(Refused):
    """Another savepoint already exists at the target."""

    code = "CKP441"
    permanent = True


class OrphanSavepoint(Refused):
    """The history of the savepoint was not found, so nobody knows whether a job still needs it."""

    code = "CKP443"
    permanent = True


def meaning(error: type[CheckpointError]) -> str:
    """Return what the code of the error means: the first line of its docstring."""
    return (error.__doc__ or "").partition("\n")[0]


def all_errors(root: type[CheckpointError] = CheckpointError) -> Iterator[type[CheckpointError]]:
    """Return every error class, the root first."""
    yield root
    for leaf in root.__subclasses__():
        yield from all_errors(leaf)
