"""All errors of the package, each with a stable code. Runs anywhere.

The root is ``CheckpointError``. An error also subclasses the builtin that a caller would catch. Its text says the cause, the
effect and what to do next; ``about`` holds the details as values. The meaning of a code never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar, Self

LONGEST_MESSAGE = 2_000  # characters of a message, which may quote a stored text of any length
LONGEST_SEARCHED = 10_000  # characters in which secrets are looked for
_USERINFO = re.compile(
    r"""\b(?:
        (s3[an]?:)/{0,3}(?=[^/@:\s]+[:@])  # a bucket has no port; keys are also written after fewer slashes
        | ([a-z][a-z0-9+.-]{0,30}:)//(?!(?:\[[0-9a-f:.]+\]|[^/@:\s]*)(?::[0-9]*)?(?:[/\s]|\Z))  # more than host and port
    )\S*@""",  # a secret may hold a slash and an @
    re.IGNORECASE | re.VERBOSE,
)


def printable(text: str) -> str:
    """Return ``text`` in one line: a blank for each line break or other space, an escape such as ``\\x1b`` for what is not printable.

    Stored text, and a server's answer, may hold any character. Unchanged, such text could forge a line of a log, or clear a terminal.
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(letter: str) -> str:
    if letter.isprintable():
        return letter
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def without_userinfo(text: str) -> str:
    """Return ``text`` without user and password in its URIs: ``s3n://***@bucket``. Some people write keys there."""
    return _USERINFO.sub(r"\1\2//***@", text) if "@" in text else text


def shortened(text: str, most: int) -> str:
    """Return ``text``, without its middle if it is longer than ``most`` characters: its end often says what to do."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


class CheckpointError(Exception):
    """An error of this package that has no code of its own.

    The root of all errors. The first line of each docstring is the meaning of the code: the documentation shows it. A permanent error
    cannot be mended by another try: an Airflow task fails without retry, a driver exits with 3.
    """

    code: ClassVar[str] = "CKP900"
    permanent: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str = "", permanent: bool = False) -> None:
        """Take the code of an error from its ``class`` line. An error below a permanent one is permanent too."""
        super().__init_subclass__()
        if code:
            cls.code = code
        if permanent:
            cls.permanent = True

    def __init__(self, message: str, **about: Any) -> None:
        searched = without_userinfo(printable(shortened(message, LONGEST_SEARCHED)))
        self.message = shortened(searched, LONGEST_MESSAGE)
        super().__init__(self.message)
        self.about = about

    def __str__(self) -> str:
        return f"{self.message}  [{self.code}]"


def as_checkpoint_error(error: Exception, where: str) -> CheckpointError:
    """Return an error as one of this package. ``where`` is added to an unforeseen error, which must not stop anything else."""
    if isinstance(error, CheckpointError):
        return error
    return CheckpointError(
        f"{where}: {type(error).__name__}: {error}. Nobody has foreseen this. Look at what is stored there"
    )


# -- wrong input -------------------------------------------------------------------------------------------------------


class InvalidName(CheckpointError, ValueError, code="CKP601", permanent=True):
    """A job id, uid, item or pointer cannot be used as written."""


class InvalidConfig(CheckpointError, ValueError, code="CKP602", permanent=True):
    """Invalid number, duration or option."""


class NotSupportedYet(CheckpointError, NotImplementedError, code="CKP603", permanent=True):
    """This version does not support the option or call."""


class UnsupportedType(CheckpointError, TypeError, code="CKP604", permanent=True):
    """Parquet cannot store the type of a column."""


class WrongUse(CheckpointError, RuntimeError, code="CKP605", permanent=True):
    """The call is not possible here or now.

    Examples: one uid twice, ``spark.stop()`` inside ``with``, Spark Connect, a notebook without a ``job_id``.
    """


class NotInParts(CheckpointError, ValueError, code="CKP651", permanent=True):
    """A stage cannot be computed in parts: the line names the operator of its plan that is in the way."""


class PartsDiffer(CheckpointError, TypeError, code="CKP652", permanent=True):
    """The parts of a stage have different columns."""


class VersionMismatch(CheckpointError, RuntimeError, code="CKP606", permanent=True):
    """A part of the installation is too old, or has another version than a part that it must match.

    Examples: Spark before 4.0, pyspark and pyspark-client, package and driver archive.
    """


class NotInstalled(CheckpointError, ImportError, code="CKP607", permanent=True):
    """A required package or jar is not installed on this host."""


class PartMissing(CheckpointError, RuntimeError, code="CKP645", permanent=True):
    """Airflow or its Spark provider has changed: a part that is not public, and that a submit needs, is gone or changed."""


class PreflightFailed(CheckpointError, RuntimeError, code="CKP608"):
    """A preflight could not compare a query: something did not answer, or the script ended before."""


class WriteRefused(CheckpointError, RuntimeError, code="CKP609"):
    """A preflight refused a call of the script that writes."""


# -- the store ---------------------------------------------------------------------------------------------------------


class StoreError(CheckpointError, code="CKP610"):
    """The checkpoint storage could not carry out a request."""


class StoreDenied(StoreError, PermissionError, code="CKP611"):
    """The checkpoint storage denied access. This never counts as an absent checkpoint."""


class StoreMisconfigured(StoreError, ValueError, code="CKP612", permanent=True):
    """The location cannot hold checkpoints.

    It is not a store, it is another store than the one meant, or it has no put-if-absent: two writers could both succeed.
    """


class NoObject(StoreMisconfigured, code="CKP615"):
    """A link, a folder, a pipe or a device lies where the store keeps a file."""


class NotItsClaim(StoreError, PermissionError, code="CKP616"):
    """A claimed savepoint was not deleted: the claim beside it names another owner than the history that lists it."""


class StoreUnavailable(StoreError, ConnectionError, code="CKP613"):
    """The checkpoint storage does not answer. Another try may help."""


class CommitStateUnknown(StoreError, TimeoutError, code="CKP614"):
    """The checkpoint storage did not answer in time: the write may have happened, or may still happen.

    Nothing is cleaned up. Read the result back before you act.
    """

    @classmethod
    def of(cls, what: str, why: str = "") -> Self:
        """Return the error of a write with an unknown outcome. ``what``: "entry 7 was written"."""
        cause = f" ({why})" if why else ""
        return cls(
            f"the store did not say whether {what}{cause}. Nothing was cleaned up. Read it back before you try again"
        )


# -- the journal and its checkpoints -----------------------------------------------------------------------------------


class FormatTooNew(CheckpointError, ValueError, code="CKP620", permanent=True):
    """A newer version of this package wrote the data."""


class Damaged(CheckpointError, ValueError, code="CKP621", permanent=True):
    """Stored data is damaged: it was complete once, and now a file is missing, shorter or different."""


class OtherIncarnation(CheckpointError, RuntimeError, code="CKP622", permanent=True):
    """The history was deleted and created again while a process was using it."""


class HistoryGone(CheckpointError, LookupError, code="CKP623", permanent=True):
    """The history to which an earlier try wrote is gone, or the task names another one now."""


class CheckpointNotFound(CheckpointError, LookupError, code="CKP624", permanent=True):
    """The checkpoint does not exist: it was never taken, was aborted, or was deleted."""


class NothingToCompare(CheckpointNotFound, code="CKP625"):
    """The checkpoint holds no streaming query, so a preflight has nothing to compare. The script is not started."""


class SavepointDisposed(CheckpointNotFound, code="CKP442"):
    """The savepoint was deleted on request.

    ``about`` says by which person or task, and when.
    """


# -- refusals of the state machine -------------------------------------------------------------------------------------


class Refused(CheckpointError, RuntimeError, code="CKP630"):
    """The journal does not allow the command."""


class Superseded(Refused, code="CKP112", permanent=True):
    """A later try of the run, or a restore, has replaced this try. This try ends without retry."""


class AlreadyFinished(Refused, code="CKP111"):
    """The run had already finished when its worker was lost. Nothing is submitted; the task succeeds."""


class JobAlreadyRunning(Refused, code="CKP131"):
    """Another run of the job, or another driver of this launch, is running."""


class JobSuspended(Refused, code="CKP130"):
    """The job is suspended. It starts again after a restore."""


class TwoOwners(Refused, code="CKP402", permanent=True):
    """Two tasks use the same job id."""


class OneItemTwice(Refused, code="CKP137"):
    """Two instances of a mapped task have one item. A retry goes on as soon as the other one has another item."""


class RunIsOlder(Refused, code="CKP403", permanent=True):
    """The run is older than a run whose results the state already contains."""


class StateRequired(Refused, LookupError, code="CKP404", permanent=True):
    """State was required, but there is no checkpoint to start from.

    ``require_state`` and ``on_clear="continue"`` require state.
    """


class Stopping(Refused, code="CKP132"):
    """An earlier driver was asked to stop and has not ended yet."""


class NotStopped(Refused, TimeoutError, code="CKP135"):
    """The job is suspended and its savepoint is complete, but the attempt has not ended.

    ``pointer`` is the savepoint.
    """


class EndedAfterStop(Refused, code="CKP136", permanent=True):
    """The job is suspended and its savepoint is complete, but then the attempt failed, was cancelled or was lost.

    ``pointer`` is the savepoint.
    """


class Fenced(Refused, code="CKP301"):
    """This attempt was replaced or has ended. Its writes are rejected, and its driver exits with code 79."""


class AttemptEnding(WrongUse, code="CKP303"):
    """The attempt of this process has ended, or ends just now, so nothing more is begun."""

    @classmethod
    def now(cls) -> Self:
        """Return the error of a call that comes too late."""
        return cls(
            "the attempt has ended, or ends just now, so nothing was done. Use the job inside of its `with` block"
        )


class QueryMoved(Refused, code="CKP302"):
    """The streaming query now runs in another checkpoint location. Nothing was started."""


class NotRunning(Refused, code="CKP230"):
    """No attempt is running that could take a checkpoint."""


class NotAttached(NotRunning, code="CKP245"):
    """The job was launched, and its driver has not attached yet, so none can take a checkpoint."""


class RunFinished(NotRunning, code="CKP236", permanent=True):
    """The run has finished. No attempt of it will take a checkpoint."""


class Busy(Refused, code="CKP231"):
    """Another checkpoint is pending. This one can be taken afterwards."""


class Queued(Busy, code="CKP237"):
    """The request for a checkpoint waits in the queue."""


class MinPause(Busy, code="CKP238"):
    """The minimum pause between two periodic checkpoints is not over."""


class NotHealthy(CheckpointError, RuntimeError, code="CKP247", permanent=True):
    """A health sensor found that a job has saved nothing for too long, or that a crash would cost too much work."""


class CheckpointFailed(CheckpointError, RuntimeError, code="CKP212"):
    """A checkpoint that the job waits for is not completed. The lines before the error say why."""


class TooManyRequests(Refused, code="CKP239"):
    """The queue of requests for checkpoints is full."""


class RequestWasDropped(Refused, code="CKP240"):
    """The request for a checkpoint was dropped from the queue.

    Its attempt ended, or the queue was full. A retry of the task makes a new request.
    """


class StillPending(CheckpointError, TimeoutError, code="CKP242"):
    """The wait for a checkpoint is over, but the checkpoint is still pending. It was not aborted."""


class NotPending(Refused, code="CKP232"):
    """The checkpoint already has another outcome than the one asked for."""


class CheckpointWasAborted(Refused, code="CKP201", permanent=True):
    """A checkpoint was aborted. If the job fails now, the next attempt starts from the checkpoint before it."""


class Held(Refused, code="CKP233"):
    """The checkpoint is not deleted, because something may still need it."""


class HistoryIsClosed(Refused, code="CKP234"):
    """The history is closed, or is being closed."""


class StillNeeded(Refused, code="CKP430"):
    """The history is not closed, because something in it runs or is kept."""


class TooLarge(Refused, code="CKP235"):
    """The checkpoint has too many file sets, the journal lists too many checkpoints, or an object is too large."""


class Declined(CheckpointError, RuntimeError, code="CKP241"):
    """A snapshot could not be taken, or a query could not be drained, so the checkpoint was aborted."""


# -- restored state ----------------------------------------------------------------------------------------------------


class SinkMoved(Refused, code="CKP401", permanent=True):
    """The sink has other batches or writes than the restored state, so rows would be skipped, missing, or there twice."""


class SinkTaken(Refused, code="CKP408", permanent=True):
    """Two queries of a job would write to one folder, or one would read the folder that it writes, so rows would be lost."""


class OverwrittenSince(Refused, code="CKP411", permanent=True):
    """A run that began later has overwritten the target of a sink, so the rows of this run were not published."""


class RowsStand(Refused, code="CKP412", permanent=True):
    """A run that is computed again would append rows that its sink has already, and the sink cannot replace them."""


class RowsRefused(CheckpointError, ValueError, code="CKP415", permanent=True):
    """The table of a sink does not take the rows: a constraint, a type, or two rows with one key."""


class CommitFailed(CheckpointError, RuntimeError, code="CKP214"):
    """The rows of a completed checkpoint could not be published yet. The next attempt publishes them."""


class NotNamed(Refused, code="CKP409", permanent=True):
    """Only the journal names a place outside of the root, and no option of this process names it. Nothing was read there."""


class SourceMoved(Refused, code="CKP405", permanent=True):
    """A source no longer has all rows that a query reads next, so rows would be missing.

    ``about`` names the missing files, commits, snapshots, or offsets of Kafka.
    """


class SourceUnavailable(CheckpointError, ConnectionError, code="CKP406"):
    """A source does not answer, so nobody knows whether it has the rows that a query reads next. Another try may help."""


class RestoreTooOld(Refused, code="CKP410", permanent=True):
    """A run would start from a checkpoint that is older than its task allows with ``max_restore_age``."""


class RenameConflict(Refused, ValueError, code="CKP421", permanent=True):
    """A renaming would give two states the same name."""


class StateNotFound(Refused, LookupError, code="CKP422", permanent=True):
    """The checkpoint does not contain the state or application that an option names."""


class DrawsDiffer(CheckpointError, RuntimeError, code="CKP407"):
    """Two stages share values that Spark draws, and only one could be reused. The next attempt computes both."""


class KindChanged(Refused, TypeError, code="CKP423", permanent=True):
    """A restored state is requested as another kind, e.g. a stage as a value."""


class NonRestoredState(Refused, LookupError, code="CKP424", permanent=True):
    """The script did not use a restored state, but used a new one of that kind, so a name may be wrong."""


class ItemsChanged(Refused, ValueError, code="CKP425", permanent=True):
    """A loop has other items than those of its finished turns, or lacks an item of this run that is open again."""


class SchemaChanged(Refused, ValueError, code="CKP413", permanent=True):
    """A table by key has another key, or a column of another type, than the history has it."""


class DuplicateKeys(Refused, ValueError, code="CKP414"):
    """A key is in several of the rows that were put into a table by key."""


# -- savepoints --------------------------------------------------------------------------------------------------------


class AlreadyClaimed(Refused, code="CKP440", permanent=True):
    """Another job has claimed this savepoint, or it is being deleted.

    ``about`` says by whom.
    """


class OtherSavepoint(Refused, code="CKP441", permanent=True):
    """Another savepoint already exists at the target."""


class OrphanSavepoint(Refused, code="CKP443", permanent=True):
    """The history of the savepoint was not found, so nobody knows whether a job still needs it."""


def meaning(error: type[CheckpointError]) -> str:
    """Return what the code of the error means: the first line of its docstring."""
    return (error.__doc__ or "").partition("\n")[0]


def all_errors(root: type[CheckpointError] = CheckpointError) -> Iterator[type[CheckpointError]]:
    """Return every error class, the root first."""
    yield root
    for leaf in root.__subclasses__():
        yield from all_errors(leaf)
