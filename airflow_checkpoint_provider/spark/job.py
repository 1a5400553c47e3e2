"""What a job's author writes: ``with CheckpointedJob() as job``. Runs in the Spark driver."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.assignment import split_allowed
from airflow_checkpoint_provider.errors import CheckpointError, CommitStateUnknown, WrongUse
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.keys import Keys, check_uid
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark import copies, s3a
from airflow_checkpoint_provider.spark.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.process.progress import Progress
from airflow_checkpoint_provider.spark.process.watchdog import Watchdog, jvm_pid
from airflow_checkpoint_provider.spark.settings import Settings, launched, script, settings_of
from airflow_checkpoint_provider.spark.stages.application import (
    Application,
    check_versions,
    digest,
    refuse_connect,
)
from airflow_checkpoint_provider.spark.stages.stage import Stages
from airflow_checkpoint_provider.spark.start import Program, begin, tell_task
from airflow_checkpoint_provider.spark.state.registered import CheckpointedObject, Registered
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.spark.state.value import Value
from airflow_checkpoint_provider.storage import open_store
from airflow_checkpoint_provider.text import messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint as others name it."""

    job: str
    scope: str
    id: int
    pointer: str


class CheckpointedJob:
    """A Spark application whose next attempt goes on from its latest completed checkpoint.

    Submitted by ``CheckpointedSparkSubmitOperator`` everything comes with the launch. Alone, without Airflow and without
    configuration: checkpoints lie below ``./checkpoints``, the job is named after the script, and the next start of the
    same script goes on with the run until one ends well.

    :param spark: the session; by default ``SparkSession.builder.getOrCreate()``.
    :param job_id: alone only; by default the script's name without ``.py``.
    :param root: where checkpoints live, a directory or ``s3://bucket/prefix``; the task's connection wins over it.
    :param checkpointing: the task's wins over it.
    :param restore: alone only: where a new run starts: "latest", "none", an id, or a pointer.
    :param allow_non_restored_state: what becomes of restored state that the script has not asked for when ``with`` ends
        well. False: it is named and handed on. True, or a list of uids: it is left behind. The task's wins over it.
    """

    _active: ClassVar[CheckpointedJob | None] = None
    _finished: ClassVar[bool] = False  # a run ended well in this process

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        job_id: str | None = None,
        root: str | None = None,
        checkpointing: CheckpointConfig | None = None,
        restore: str | int = "latest",
        allow_non_restored_state: bool | Sequence[str] = False,
    ) -> None:
        self._given, self._allowed = spark, allow_non_restored_state
        self._job_id, self._root, self._checkpointing, self._restore = job_id, root, checkpointing, str(restore)

    # -- with --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if CheckpointedJob._active is not None:
            raise WrongUse("two CheckpointedJobs in one driver: one `with CheckpointedJob()` holds the whole job")
        if CheckpointedJob._finished:
            raise WrongUse("this driver's run has finished: put all of the job into one `with CheckpointedJob()`")
        if self._given is not None:
            refuse_connect(self._given)
        self.spark = self._given or SparkSession.builder.getOrCreate()
        refuse_connect(self.spark)
        self._launched = launched(self.spark)
        try:
            check_versions(self.spark)
            self._begin(self._find_settings())
        except CheckpointError as error:
            self._refuse(error)
            raise
        CheckpointedJob._active = self
        return self

    def _find_settings(self) -> Settings:
        settings = settings_of(
            self.spark, job_id=self._job_id, root=self._root, checkpointing=self._checkpointing, restore=self._restore,
            allow_non_restored_state=self._allowed,
        )  # fmt: skip
        for line in (*settings.notes, *messages.not_paced(settings.config)):
            say(line)
        return settings

    def _begin(self, settings: Settings) -> None:
        application = digest(self.spark, script(), sys.argv[1:])
        if application.note:
            say(application.note)
        self._settings = settings
        s3a.prepare(self.spark, open_store(settings.root, s3=settings.s3))
        self._attempt = begin(settings, Program(application.digest, self.spark.version))
        self._watchdog = Watchdog(jvm_pid(self.spark), self._jvm_died, self._terminated).start()
        self._attempt.watch()
        try:
            self._attach(settings, application)
        except BaseException as error:
            self._attempt.end_failed(self._code_of(error))
            self._watchdog.stop()
            raise

    def _attach(self, settings: Settings, application: Application) -> None:
        """Read the states, which may be long in coming where they lie elsewhere, and get ready for the script."""
        seal, point = copies.renamed(self._attempt), self._attempt.restored.point
        self._states = States.restored(seal, self._attempt.run.key, elsewhere=bool(point and point.pointer))
        self._states.snapshots = copies.brought_in(self._attempt, self._states.snapshots)
        self._registered = Registered(self._states, seal.id if seal else None)
        self._checkpointer = Checkpointer(
            self._attempt, self._states, self._registered, self.spark.version, settings.config
        )
        self._stages = Stages(self.spark, self._attempt, self._states, self._checkpointer, application)
        self._names: set[str] = set()
        self._progress = Progress(self.spark, self._attempt, self._checkpointer.protection)
        self._attempt.on_state = self._look
        before = max(
            (one for one in self._attempt.state.attempts if one.epoch < self._attempt.epoch),
            key=lambda one: one.epoch,
            default=None,
        )
        said = messages.application_line(application.digest, before, self._attempt.run)
        say(f"attempt {self._attempt.epoch} of {settings.job}, run {self._attempt.run.key}: {said}")
        self._attempt.attach(said)
        self._checkpointer.remove_garbage()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CheckpointedJob._active = None
        try:
            if kind is None or (isinstance(error, SystemExit) and error.code in (0, None)):
                self._finish()
            else:
                self._fail(error)
                if isinstance(error, SystemExit) and _exit_code(error) == 0:  # sys.exit(256) would be success
                    raise SystemExit(int(ExitCode.FAILED))
        finally:
            self._watchdog.stop()

    def _finish(self) -> None:
        try:
            self._end_well()
        except BaseException as error:
            self._fail(error)
            raise

    def _end_well(self) -> None:
        """What is pending gets its outcome, what changed its last checkpoint; then the attempt is *finished*.

        Whether a registered object changed since the last barrier only a barrier can tell."""
        if self.spark.sparkContext._jsc is None:
            raise WrongUse("spark.stop() was called inside `with CheckpointedJob()`: move it behind the block")
        self._checkpointer.wait()
        self._attempt.still_mine()  # and see what was asked for since the last look
        self._leave_over()
        last = bool(self._registered)
        while True:
            if last or self._states.changed() or self._checkpointer.requested():
                self._last_checkpoint()
            last = False
            self._checkpointer.savepoints.settle()
            self._checkpointer.manual.wait(self._checkpointer.requested)
            if not self._checkpointer.requested() or self._checkpointer.protection.failures:
                break
        self._checkpointer.close()
        self._attempt.still_mine()
        self._checkpointer.protection.judge()
        self._checkpointer.notify_last()
        self._attempt.end("finished", ExitCode.FINISHED)
        CheckpointedJob._finished = True

    def _leave_over(self) -> None:
        """What was restored and nobody asked for is handed on, or left behind where that is allowed; either is said."""
        unclaimed = {one.uid: one for one in self._states.unclaimed()}
        dropped, kept = split_allowed(unclaimed, self._settings.allow_non_restored_state)
        self._states.drop(dropped)
        for uids, line in ((dropped, messages.left_behind), (kept, messages.handed_on)):
            if uids:
                say(line([unclaimed[uid] for uid in uids]))

    def _last_checkpoint(self) -> None:
        if not any(self._checkpointer.checkpoint("end", wait=True) for _ in range(2)):
            raise CommitStateUnknown(
                "the last checkpoint could not be completed; the run is not finished, a retry goes on from the one before"
            )

    def _fail(self, error: BaseException | None) -> None:
        """The attempt ends *failed*; an error that no retry can mend is told to the task, and leaves as exit code 3."""
        self._checkpointer.close()
        self._attempt.end_failed(self._code_of(error))
        if isinstance(error, CheckpointError):
            self._refuse(error)

    def _code_of(self, error: BaseException | None) -> int:
        """With which the driver is going to end."""
        if isinstance(error, CheckpointError):
            return ExitCode.REFUSED if self._launched and error.permanent else ExitCode.FAILED
        return _exit_code(error)

    def _refuse(self, error: CheckpointError) -> None:
        """Where no retry can mend it, and there is a task that would retry: leave the text for it, and end with exit code 3."""
        if self._launched is None or not error.permanent:
            return
        traceback.print_exception(error)
        with contextlib.suppress(CheckpointError):
            tell_task(self._launched.store, Keys(self._launched.prefix), self._launched.number, error)
        raise SystemExit(int(ExitCode.REFUSED))

    def _look(self, state: State) -> None:
        """Once a second, in the attempt's watch."""
        self._progress.look(state)
        self._checkpointer.look()

    def _jvm_died(self) -> None:
        self._attempt.end_now("failed", ExitCode.FAILED, "its JVM is gone; the driver ends with it")

    def _terminated(self) -> None:
        self._attempt.end_now("failed", 143, "SIGTERM")

    # -- in the script -----------------------------------------------------------------------------------------------

    def stage(self, uid: str, df: DataFrame | Callable[[], DataFrame], *, version: str | None = None) -> DataFrame:
        """Compute rows once in this run, store them, and return them read back; on a retry, the stored rows.

        Eager, as ``df.checkpoint()`` is. Schema and values are kept; order, partitioning and ``nullable = false`` are not,
        on fresh and resumed runs alike. A function is called only where its rows must be computed.

        :param version: the author's word that rows stay valid while the application changes; another one recomputes.
        """
        self._name(uid)
        return self._stages.run(uid, df, version)

    def value(self, uid: str, default: Any = None) -> Value:
        """Small JSON state (64 KiB at most). Values follow the script: a retry begins with those with which its run began,
        and each reused stage sets them to what they were at its end."""
        self._name(uid)
        self._states.claim_value(uid)
        return Value(self._states.values, uid, default, self._attempt.leave_if_over)

    def register(self, uid: str, obj: CheckpointedObject) -> None:
        """A state of your own, or a hook without one. ``obj.initialize_state`` is called here and now, with what was
        restored; ``obj.snapshot_state`` at each barrier from now on; and its other methods, if it has them
        (``CheckpointedObject``).

        Unlike values it does not follow the script: a retry hands it the *newest* state, that of the restore point, and
        then runs the script's own lines between reused stages once more. So it suits what lies outside the script: a
        position in a source, a session, a transaction.
        """
        self._name(uid)
        self._attempt.still_mine()
        self._registered.add(uid, obj)

    def checkpoint(self, *, wait: bool = True) -> None:
        """An explicit barrier. With ``wait`` it returns when the checkpoint completed, and raises if it did not:
        ``Declined`` where a registered object could not say its state."""
        if not self._checkpointer.checkpoint("checkpoint()", wait=wait) and wait:
            raise CommitStateUnknown(
                "the checkpoint did not complete; the lines above say why. The job may go on without it"
            )

    @property
    def attempt(self) -> int:
        """This attempt's epoch: rises with each attempt of the history."""
        return self._attempt.epoch

    @property
    def started_at(self) -> datetime:
        """When the run's *first* attempt was planned: the same in every retry. Use it instead of ``now()``."""
        return datetime.fromisoformat(self._attempt.run.started_at)

    @property
    def restored(self) -> CheckpointRef | None:
        """The checkpoint from which this attempt started."""
        point = self._attempt.restored.point
        return None if point is None else self._ref(point)

    def _ref(self, point: Point) -> CheckpointRef:
        state: State = self._attempt.state
        store, keys = self._attempt.store, self._attempt.keys
        number = point.id or self._attempt.restored.above
        return CheckpointRef(state.job, state.scope, number, point.pointer or str(keys.pointer(store.uri, number)))

    def _name(self, uid: str) -> None:
        """One uid is one state; the second use in one attempt would be the first's rows."""
        check_uid(uid)
        if uid in self._names:
            raise WrongUse(
                f"uid '{uid}' is used twice in this attempt (a stage in a loop?): give each state its own uid"
            )
        self._names.add(uid)


def _exit_code(error: BaseException | None) -> int:
    """Which the interpreter will end with."""
    given = error.code if isinstance(error, SystemExit) else None
    return given & 0xFF if isinstance(given, int) else ExitCode.FAILED
