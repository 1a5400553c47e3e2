"""The job as its author writes it: ``with CheckpointedJob() as job``. Runs in the Spark driver."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointFailed, WrongUse
from airflow_checkpoint_provider.policies.arguments import as_text, check_call, checks_arguments
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.preflight import PreflightRequest
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark import s3a
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.attempt.progress import Progress
from airflow_checkpoint_provider.spark.attempt.settings import Settings, launched, script, settings_of
from airflow_checkpoint_provider.spark.attempt.start import Program, begin
from airflow_checkpoint_provider.spark.attempt.watch import AttemptWatch
from airflow_checkpoint_provider.spark.checkpoints import copies
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.checkpoints.participants import Participants
from airflow_checkpoint_provider.spark.end import JobEnd, exit_code, refuse_retry
from airflow_checkpoint_provider.spark.preflight import PreflightJob
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.process.watchdog import Watchdog, jvm_pid
from airflow_checkpoint_provider.spark.queries.batch_function import refuse_inside
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.queries.timer import CheckpointTimer
from airflow_checkpoint_provider.spark.stages import arguments
from airflow_checkpoint_provider.spark.stages.application import (
    Application,
    digest,
    refuse_connect,
)
from airflow_checkpoint_provider.spark.stages.stage import Stages
from airflow_checkpoint_provider.spark.state.registered import CheckpointedObject, Registered
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.spark.state.value import Value
from airflow_checkpoint_provider.spark.versions import check_versions, untried
from airflow_checkpoint_provider.text import state_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


OUTSIDE = "the job is not active here. Use it inside `with CheckpointedJob() as job:`"


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint of a job: its id, and the pointer that opens it."""

    job: str
    scope: str
    id: int
    pointer: str


class CheckpointedJob:
    """A Spark application whose next attempt goes on from its latest completed checkpoint.

    If ``CheckpointedSparkSubmitOperator`` submits it, all settings come with the launch. Without Airflow, checkpoints lie
    below ``./checkpoints``, the job has the name of the script, and the next start of the same script continues the run
    until one attempt finishes it. Then a second ``with`` in the same process begins a new run, so a notebook's cell can be run twice.

    :param spark: the session; by default ``SparkSession.builder.getOrCreate()``.
    :param job_id: only without Airflow; by default the script's name without ``.py``. A notebook, a REPL, ``-c`` and standard
        input need it.
    :param root: where checkpoints lie: a directory or ``s3://bucket/prefix``. The task's connection wins over it.
    :param checkpointing: the configuration of checkpoints. The task's wins over it.
    :param restore: only without Airflow: where a new run starts: "latest", "none", an id, or a pointer.
    :param allow_non_restored_state: what happens to restored state that the script did not use when ``with`` ends well.
        False: it is logged and kept, or ``NonRestoredState`` is raised if the script may have used a wrong name.
        True, or a list of uids: it is dropped. "keep": it is kept. ``{"weekly": "keep", "old": "drop"}`` says it by uid.
        The task's wins over it.
    """

    _running: Attempt | None = None
    _active: ClassVar[CheckpointedJob | None] = None
    _finished: ClassVar[bool] = False  # a run ended well in this process

    def __new__(cls, spark: SparkSession | None = None, *args: Any, **options: Any) -> Any:
        """Return the job; or one that only looks, if the command line has asked for that. Raises what refuses an argument or the request."""
        try:
            check_call(cls.__name__, OPTIONS, (None, spark, *args), options, arguments.JOB)
            request = PreflightRequest.of(os.environ)
        except CheckpointError as error:
            if session := SparkSession.getActiveSession():
                refuse_retry(error, launched(session))
            raise
        return PreflightJob(request, spark) if request else super().__new__(cls)

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        job_id: str | None = None,
        root: str | PathLike[str] | None = None,
        checkpointing: CheckpointConfig | None = None,
        restore: str | int = "latest",
        allow_non_restored_state: AllowanceOption = False,
    ) -> None:
        self._session, self._allowed = spark, allow_non_restored_state
        self._job_id, self._checkpointing, self._restore = job_id, checkpointing, str(restore)
        self._root = as_text(root)
        self._owner = os.getpid()

    # -- with --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._owner = os.getpid()
        if CheckpointedJob._active is not None:
            raise WrongUse(
                "two CheckpointedJobs are active in one driver. Put the whole job into one `with CheckpointedJob()`"
            )
        if self._session is not None:
            refuse_connect(self._session)
        self.spark = self._session or SparkSession.builder.getOrCreate()
        refuse_connect(self.spark)
        self._launched = launched(self.spark)
        if CheckpointedJob._finished and self._launched:
            raise WrongUse(
                "the run of this driver has finished already. Put the whole job into one `with CheckpointedJob()`"
            )
        try:
            check_versions(self.spark)
            self._begin(self._find_settings())
        except CheckpointError as error:
            refuse_retry(error, self._launched)
            raise
        CheckpointedJob._active = self
        return self

    def _find_settings(self) -> Settings:
        settings = settings_of(
            self.spark,
            job_id=self._job_id,
            root=self._root,
            checkpointing=self._checkpointing,
            restore=self._restore,
            allow_non_restored_state=self._allowed,
        )
        for line in settings.notes:
            say(line)
        return settings

    def _begin(self, settings: Settings) -> None:
        application = digest(self.spark, script(), sys.argv[1:])
        for note in filter(None, (untried(self.spark.version), application.note)):
            say(note)
        s3a.prepare(self.spark, settings.open_store())
        self._running = begin(settings, Program(application.digest, application.stored_parts, self.spark.version))
        self._watchdog = Watchdog(jvm_pid(self.spark), self._jvm_died, self._terminated).start()
        try:
            self._prepare(settings, application)
            AttemptWatch(
                self._attempt, (self._progress.report, self._queries.report, self._checkpointer.on_watch)
            ).start()
            self._attach(settings, application)
        except BaseException as error:
            self._attempt.end.failed(exit_code(error, self._launched))
            self._watchdog.stop()
            raise

    def _prepare(self, settings: Settings, application: Application) -> None:
        """Make the parts of the attempt, with its restored states."""
        seal, point = copies.renamed(self._attempt), self._attempt.restored.point
        self._states = States.restored(seal, self._attempt.run.key, elsewhere=bool(point and point.pointer))
        self._registered = Registered(self._states, seal.id if seal else None)
        self._queries = Queries(self.spark, self._attempt, self._states, settings.config)
        participants = Participants(self._states, self._registered, self._queries)
        self._checkpointer = Checkpointer(self._attempt, participants, self.spark.version, settings.config)
        self._timer = CheckpointTimer(self._attempt, self._queries, self._checkpointer, settings.config)
        self._stages = Stages(self.spark, self._attempt, self._states, self._checkpointer, application)
        self._uids: set[str] = set()
        self._unsaid = state_messages.not_paced(settings.config)  # until there is a stage
        self._progress = Progress(self.spark, self._attempt, self._checkpointer.protection)
        self._end = JobEnd(
            self.spark,
            self._attempt,
            self._states,
            self._registered,
            self._checkpointer,
            self._queries,
            self._timer,
            self._launched,
            settings.allow_non_restored_state,
        )

    def _attach(self, settings: Settings, application: Application) -> None:
        """Copy the states if they lie elsewhere, which may take long. Then the script begins."""
        self._states.snapshots = copies.import_states(self._attempt, self._states.snapshots)
        line = state_messages.application_line(
            application.digest, application.stored_parts, self._attempt_before(), self._attempt.run
        )
        say(f"attempt {self._attempt.epoch} of {settings.job}, run {self._attempt.run.key}: {line}")
        context = self.spark.sparkContext
        self._attempt.activity.attach(line, context.applicationId, context.uiWebUrl or "")
        self._checkpointer.remove_garbage()

    def _attempt_before(self) -> AttemptRecord | None:
        earlier = (attempt for attempt in self._attempt.journal.state.attempts if attempt.epoch < self._attempt.epoch)
        return max(earlier, key=lambda attempt: attempt.epoch, default=None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CheckpointedJob._active = None
        if os.getpid() != self._owner:  # a fork: the attempt is that of the process that forked
            return
        try:
            if kind is None or (isinstance(error, SystemExit) and error.code in (0, None)):
                self._finish()
            else:
                self._end.fail(error)
                # ``sys.exit(256)`` would be success.
                if isinstance(error, SystemExit) and exit_code(error, self._launched) == 0:
                    raise SystemExit(int(ExitCode.FAILED))
        finally:
            self._watchdog.stop()

    def _finish(self) -> None:
        try:
            self._end.finish()
        except BaseException as error:
            self._end.fail(error)
            raise
        CheckpointedJob._finished = True

    def _jvm_died(self) -> None:
        self._attempt.end.now("failed", ExitCode.FAILED, "its JVM is gone, and the driver cannot work without it")

    def _terminated(self) -> None:
        self._attempt.end.now("failed", 143, "SIGTERM")

    # -- in the script -----------------------------------------------------------------------------------------------

    @checks_arguments(**arguments.STAGE)
    def stage(
        self,
        uid: str,
        df: DataFrame | Callable[[], DataFrame],
        *,
        version: str | None = None,
        inputs: str = "auto",
    ) -> DataFrame:
        """Compute and store rows once in this run, and return the stored rows. A retry returns them without computing.

        It is eager, as ``df.checkpoint()`` is. Schema and values are kept. Order, partitioning and ``nullable = false`` are
        not, in fresh and resumed runs alike. A function is called only if its rows must be computed.

        :param version: equal rows stay valid although the application changes; another version computes them again.
        :param inputs: what happens if Spark lists other files, or a newer version of a table, than when the rows were stored.
            "auto": a retry keeps the rows, and a line says so; if the application changed, or the task was cleared, they are
            computed again. "compare": they are always computed again, and a function is called to look. "keep": they are kept.
        """
        self._claim(uid)
        while self._unsaid:
            say(self._unsaid.pop())
        return self._stages.run(uid, df, version, inputs)

    @checks_arguments(**arguments.UID)
    def value(self, uid: str, default: Any = None) -> Value:
        """Return small JSON state, 64 KiB at most. Raises ``InvalidConfig`` if the default is no JSON, as ``Value.set`` does.

        Values follow the script: a retry begins with the values with which its run began. A reused stage sets them to what they
        were at its end, unless the application has changed since: then what the new code sets counts.
        """
        self._claim(uid)
        self._states.claim_value(uid)
        return Value(self._states.values, uid, default, self._set_value)

    @checks_arguments(**arguments.REGISTER)
    def register(self, uid: str, obj: CheckpointedObject) -> None:
        """Register an object with a state of its own, or a hook without state.

        ``obj.initialize_state`` is called at once, with the restored state. ``obj.snapshot_state`` is called at each barrier
        from now on, and its other methods if it has them (``CheckpointedObject``).

        Unlike values it does not follow the script: a retry gives it the *newest* state, that of the restore point, and then
        runs the script's own lines between reused stages again. So it suits state outside the script: a position in a
        source, a session, a transaction.
        """
        self._claim(uid)
        self._attempt.writer.check_not_fenced()
        self._registered.add(uid, obj)

    @checks_arguments(**arguments.QUERY)
    def start_query(
        self,
        uid: str,
        writer: DataStreamWriter,
        *,
        after: Sequence[str] = (),
        adopt: str | PathLike[str] | None = None,
        rescale: bool = False,
    ) -> Query:
        """Start a streaming query where it was, and return when a batch that had begun before is committed.

        ``writer`` is a ``DataStreamWriter`` with format, path, trigger and output mode, without ``checkpointLocation``, and not
        started. A retry and the next run go on with the next batch; no row is lost or doubled in files, in a Delta or Iceberg
        table, or in a ``batch_sink``. While the query runs, checkpoints are taken at the pace of ``interval``. Leaving ``with``
        waits for the query; a query that fails fails the attempt.

        :param after: uids of queries whose files or Delta tables this one reads. They are started before, and a checkpoint holds all
            of them at batches that fit together.
        :param adopt: the ``checkpointLocation`` of the query if it ran without this package. It is looked at until the query has a
            location here.
        :param rescale: give the query's state as many partitions as ``spark.sql.shuffle.partitions`` of the session says. Else it keeps
            the number that it has.
        """
        self._claim(uid)
        self._timer.start()
        query = self._queries.start(uid, writer, after=after, adopt=as_text(adopt), rescale=rescale)
        self._timer.settle()
        return query

    def await_queries(self) -> None:
        """Wait until every query has ended. Raises the error of the first one that failed."""
        self._check_active()
        self._queries.wait()

    @checks_arguments(**arguments.CHECKPOINT)
    def checkpoint(self, *, wait: bool = True) -> None:
        """Take a checkpoint here. With ``wait``, return when it is completed.

        Raises ``CheckpointFailed`` if it is not, and ``Declined`` if a registered object gave no state.
        """
        self._check_active()
        if not self._checkpointer.checkpoint("checkpoint()", wait=wait):
            raise CheckpointFailed(
                "the checkpoint is not completed; the lines above say why. Catch CheckpointFailed to continue without it"
            )

    @property
    def attempt(self) -> int:
        """Return the epoch of this attempt. It rises with each attempt of the history."""
        return self._attempt.epoch

    @property
    def started_at(self) -> datetime:
        """Return when the run's *first* attempt was planned: the same in every retry. Use it instead of ``now()``."""
        return datetime.fromisoformat(self._attempt.run.started_at)

    @property
    def restored(self) -> CheckpointRef | None:
        """Return the checkpoint from which this attempt started; None if it started without one."""
        point = self._attempt.restored.point
        return None if point is None else self._ref(point)

    @property
    def _attempt(self) -> Attempt:
        if self._running is None:
            raise WrongUse(OUTSIDE)
        return self._running

    def _ref(self, point: Point) -> CheckpointRef:
        state: State = self._attempt.journal.state
        store, keys = self._attempt.store, self._attempt.keys
        number = point.id or self._attempt.restored.id_floor
        return CheckpointRef(state.job, state.scope, number, point.pointer or str(keys.pointer(store.uri, number)))

    def _set_value(self, uid: str, value: Any) -> None:
        refuse_inside()
        self._refuse_fork()
        self._attempt.leaving.if_over()
        self._states.set_value(uid, value)

    def _refuse_fork(self) -> None:
        if os.getpid() != self._owner:
            raise WrongUse(
                "the job was called in a forked child. The attempt is that of the process that forked: call the job there. Start"
                " programs with subprocess, and let a child of os.fork end by os._exit"
            )

    def _check_active(self) -> None:
        refuse_inside()
        self._refuse_fork()
        if CheckpointedJob._active is not self:
            raise WrongUse(OUTSIDE)

    def _claim(self, uid: str) -> None:
        """Note that the script uses ``uid``. Raises ``WrongUse`` at the second use: it would return the rows of the first."""
        self._check_active()
        if uid in self._uids:
            raise WrongUse(
                f"uid '{uid}' is used twice in this attempt. Give each state its own uid; in a loop, write one for each turn:"
                f' f"{uid}-{{day}}"'
            )
        self._uids.add(uid)


OPTIONS = inspect.signature(CheckpointedJob.__init__)
