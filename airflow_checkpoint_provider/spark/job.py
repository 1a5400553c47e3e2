"""The job as its author writes it: ``with CheckpointedJob() as job``. Runs in the Spark driver."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointFailed, WrongUse
from airflow_checkpoint_provider.policies.arguments import as_text, check_call, checks_arguments
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.preflight import PreflightRequest
from airflow_checkpoint_provider.spark.attempt.in_task import refuse_in_task
from airflow_checkpoint_provider.spark.attempt.settings import Launched, launched, settings_of
from airflow_checkpoint_provider.spark.attempt_run import AttemptRun
from airflow_checkpoint_provider.spark.end import refuse_retry
from airflow_checkpoint_provider.spark.job_run import CheckpointRef, JobRun
from airflow_checkpoint_provider.spark.loops.frame import Frame
from airflow_checkpoint_provider.spark.loops.keyed import GROUPS, KeyedState
from airflow_checkpoint_provider.spark.loops.pace import Every, check_every
from airflow_checkpoint_provider.spark.preflight import PreflightRun, refuse_ended
from airflow_checkpoint_provider.spark.queries.batch_function import refuse_inside
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.sinks.base import Sink
from airflow_checkpoint_provider.spark.sinks.writer import ARGUMENTS, SinkWriter
from airflow_checkpoint_provider.spark.stages import arguments
from airflow_checkpoint_provider.spark.stages.application import refuse_connect
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from airflow_checkpoint_provider.spark.state.registered import CheckpointedObject
from airflow_checkpoint_provider.spark.state.value import Value
from airflow_checkpoint_provider.spark.versions import check_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


OUTSIDE = "the job is not active here. Use it inside `with CheckpointedJob() as job:`"


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

    _active: ClassVar[CheckpointedJob | None] = None
    _finished: ClassVar[bool] = False  # a run ended well in this process
    _order: PreflightRequest | None
    _run: JobRun | None = None

    def __new__(cls, spark: SparkSession | None = None, *args: Any, **options: Any) -> Self:
        """Read whether the command line has asked for a preflight. Raises what refuses an argument or the request."""
        job = super().__new__(cls)
        try:
            check_call(cls.__name__, OPTIONS, (None, spark, *args), options, arguments.JOB)
            job._order = PreflightRequest.of(os.environ)
        except CheckpointError as error:
            if session := SparkSession.getActiveSession():
                refuse_retry(error, launched(session))
            raise
        return job

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

    # -- with --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if CheckpointedJob._active is not None:
            raise WrongUse(
                "two CheckpointedJobs are active in one driver. Put the whole job into one `with CheckpointedJob()`"
            )
        refuse_in_task()
        self._run = None
        if self._order:
            refuse_ended(self._order)
        if self._session is not None:
            refuse_connect(self._session)
        self.spark = self._session or SparkSession.builder.getOrCreate()
        refuse_connect(self.spark)
        task = launched(self.spark)
        if CheckpointedJob._finished and task:
            raise WrongUse(
                "the run of this driver has finished already. Put the whole job into one `with CheckpointedJob()`"
            )
        try:
            check_versions(self.spark)
            self._run, self._uids, self._numbered = self._begin(task), set[str](), set[str]()
        except CheckpointError as error:
            refuse_retry(error, task)
            raise
        CheckpointedJob._active = self
        return self

    def _begin(self, task: Launched | None) -> JobRun:
        if self._order:
            return PreflightRun(self.spark, self._order, task)
        settings = settings_of(
            self.spark,
            job_id=self._job_id,
            root=self._root,
            checkpointing=self._checkpointing,
            restore=self._restore,
            allow_non_restored_state=self._allowed,
        )
        return AttemptRun(self.spark, settings, task)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CheckpointedJob._active = None
        run = self._begun
        if run.forked:  # the attempt belongs to the process that forked
            return
        if kind is None or (isinstance(error, SystemExit) and error.code in (0, None)):
            run.finish()
            CheckpointedJob._finished = True
        else:
            run.fail(error)

    # -- in the script -----------------------------------------------------------------------------------------------

    @checks_arguments(**arguments.STAGE)
    def stage(
        self,
        uid: str,
        df: DataFrame | Callable[..., DataFrame],
        *,
        version: str | None = None,
        inputs: str = "auto",
        parts: Sequence[Any] | None = None,
        by: str | None = None,
    ) -> DataFrame:
        """Compute and store rows once in this run, and return the stored rows. A retry returns them without computing.

        It is eager, as ``df.checkpoint()`` is. Schema and values are kept. Order, partitioning and ``nullable = false`` are
        not, in fresh and resumed runs alike. A function is called only if its rows must be computed.

        :param version: equal rows stay valid although the application changes; another version computes them again.
        :param inputs: what happens if Spark lists other files, or a newer version of a table, than when the rows were stored.
            "auto": a retry keeps the rows, and a line says so; if the application changed, or the task was cleared, they are
            computed again. "compare": they are always computed again, and a function is always called. "keep": they are kept.
        :param parts: values, such as days. The function is called with each, and the rows of each part are stored as soon as they are
            computed: a retry computes only the parts that are missing. Raises ``NotInParts`` and ``PartsDiffer``.
        :param by: a partition column of the DataFrame's source. Its values are the parts.
        """
        run = self._claim(uid)
        if parts is None and by is None:
            return run.stage(uid, df, version, inputs)
        return run.stage_in_parts(uid, df, Parts.of(uid, df, parts, by), version, inputs)

    @checks_arguments(**arguments.FILES)
    def files(
        self, uid: str, write: Callable[[str], object], *, local: bool = False, version: str | None = None
    ) -> str:
        """Let ``write`` put files into a folder once in this run, store them, and return the path of the folder. A retry returns it without
        calling ``write``.

        ``write(path)`` gets a path that Spark can write to and that does not exist yet: ``model.write().save(path)``. The returned path is
        the same one, for ``Model.load``. Nobody may change the files; a retry compares all their bytes, and raises ``Damaged``.

        :param local: ``write`` gets an empty folder on the driver's disk, for files that Spark does not write. They are stored when it
            returns, and a retry fetches them into such a folder again.
        :param version: equal files stay valid although the application changes; another version writes them again. Without it, a changed
            application writes them again, and so does a stage before them that was computed again.
        """
        return self._claim(uid).files(uid, write, version, local=local)

    @checks_arguments(**arguments.UID)
    def value(self, uid: str, default: Any = None) -> Value:
        """Return small JSON state, 64 KiB at most. Raises ``InvalidConfig`` if the default is no JSON, as ``Value.set`` does.

        Values follow the script: a retry begins with the values with which its run began. A reused stage sets them to their values at its
        end. If the application has changed since, the values that the new code sets count.
        """
        return self._claim(uid).value(uid, default)

    @checks_arguments(**arguments.REGISTER)
    def register(self, uid: str, obj: CheckpointedObject) -> None:
        """Register an object with a state of its own, or a hook without state.

        ``obj.initialize_state`` is called at once, with the restored state. ``obj.snapshot_state`` is called at each barrier
        from now on, and its other methods if it has them (``CheckpointedObject``).

        Unlike values it does not follow the script: a retry gives it the *newest* state, that of the restore point, and then
        runs the script's own lines between reused stages again. So it suits state outside the script: a position in a
        source, a session, a transaction.
        """
        self._claim(uid).register(uid, obj)

    @checks_arguments(**ARGUMENTS)
    def sink(self, uid: str, sink: Sink, *, gated: bool = False) -> SinkWriter:
        """Return a sink whose rows readers see once, and only if the checkpoint that holds them is completed.

        ``job.sink("report", FileSink(path)).write(df)`` computes the rows at once and holds them ready in the target. The next completed
        checkpoint publishes them: that of the next stage, ``job.checkpoint()``, or the end of ``with``. A retry does not write again what
        its restore point holds. Rows that the run computes again, also after a clear, replace the earlier ones; a sink that cannot replace
        them raises ``RowsStand`` before anything is computed.

        :param sink: ``FileSink``, ``DeltaSink``, ``IcebergSink``, ``JdbcSink``, or a sink of your own (``Sink``).
        :param gated: only a gated checkpoint that was finalized publishes the rows. Other checkpoints hold them.
        """
        return self._claim(uid).sink(uid, sink, gated=gated)

    @checks_arguments(**arguments.UID)
    def txn(self, uid: str) -> dict[str, str]:
        """Return ``txnAppId`` and ``txnVersion`` for one write of your own to a Delta table: ``df.write...options(**job.txn("rows"))``.

        Each call is one write, which readers see at once. A retry gets the numbers of its run again, from the first on, so Delta leaves a
        repeated write out. Another run gets another id. Raises ``RowsStand`` if a run that has written is computed again: Delta would
        leave its new rows out, too.
        """
        if uid not in self._numbered:
            self._claim(uid)
            self._numbered.add(uid)
        return self._current().txn(uid)

    @checks_arguments(**arguments.UID, every=check_every)
    def iterate(self, uid: str, items: Iterable[Any], *, every: Every = None) -> Iterator[Any]:
        """Iterate over ``items``, and let a retry go on at the first turn that is not finished: ``for epoch in job.iterate("train", range(50))``.

        A turn is finished when the script asks for the next item. At some of these moments, a checkpoint stores how far the loop is,
        with all frames, the values, and how often each sink was written to. A retry begins there. Only frames, values and stored rows last:
        it does not have the Python variables of finished turns. Each run does all turns; see ``once`` for items that a history does once.

        :param items: numbers, text, or lists of them. A retry compares those of finished turns, and raises ``ItemsChanged``.
        :param every: how often: after so many turns, or a duration such as "10 min", at the latest after ten turns. By default it is the
            ``interval`` of checkpoints. The end of the loop, and a checkpoint that somebody has asked for, count as well.
        """
        return self._claim(uid).iterate(uid, items, every)

    @checks_arguments(**arguments.UID)
    def once(self, uid: str, items: Iterable[Any]) -> Iterator[Any]:
        """Iterate over those ``items`` that no earlier run of the history has done: ``for day in job.once("days", [args.day])``.

        The end of each turn is a barrier. Its checkpoint holds the item as done, with all frames and values, so the effect of an item is in
        them once. Writes to sinks are published with the end of the turn. Raises ``WrongUse`` at the next call of the job if the script
        leaves the loop with ``break`` after the turn has changed something: the item would be neither done nor open.

        :param items: text, numbers, or lists of them, 4 KiB at most. They are compared by value. Checkpoints show them.
        """
        return self._claim(uid).once(uid, items)

    @checks_arguments(**arguments.UID)
    def frame(self, uid: str, initial: DataFrame | Callable[[], DataFrame]) -> Frame:
        """Return a DataFrame that lasts from run to run: ``frame.df`` are its present rows, ``frame.set(df)`` replaces them.

        It is changed only in turns of ``iterate`` and ``once``. Their barriers store its rows, and cut its plan, which would grow with each
        turn. Frames follow the script, as values do: a retry begins with the rows with which its run began.

        :param initial: the first rows, or a function that returns them. It is called only if the history has no such frame.
        """
        return self._claim(uid).frame(uid, initial)

    @checks_arguments(**arguments.KEYED)
    def keyed_state(
        self,
        uid: str,
        key: Sequence[str] | str,
        *,
        schema: StructType | str | None = None,
        max_parallelism: int = GROUPS,
    ) -> KeyedState:
        """Return a table by key that lasts from run to run: ``upsert``, ``delete`` and ``replace`` change it, ``df`` are its rows.

        It is changed inside of a turn of ``iterate`` or ``once`` only, as a frame is. The end of the turn stores what has changed.

        :param key: the columns of the key: numbers, texts, days, times, booleans or bytes. A key may be null.
        :param schema: the columns before anything was put in. Without it, ``df`` can be read only after that.
        :param max_parallelism: the number of key groups. It is fixed when the state is stored first.
        """
        return self._claim(uid).keyed_state(uid, key, schema, max_parallelism)

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
        :param adopt: the ``checkpointLocation`` of the query if it ran without this package. It is used until the query has a location here.
        :param rescale: give the query's state as many partitions as ``spark.sql.shuffle.partitions`` of the session says. Else it keeps
            the number that it has.
        """
        return self._claim(uid).start_query(uid, writer, after, as_text(adopt), rescale=rescale)

    def await_queries(self) -> None:
        """Wait until every query has ended. Raises the error of the first one that failed."""
        self._current().await_queries()

    @checks_arguments(**arguments.CHECKPOINT)
    def checkpoint(self, *, wait: bool = True) -> None:
        """Take a checkpoint here. With ``wait``, return when it is completed.

        Raises ``CheckpointFailed`` if it is not, and ``Declined`` if a registered object gave no state.
        """
        if not self._current().checkpoint(wait=wait):
            raise CheckpointFailed(
                "the checkpoint is not completed; the lines above say why. Catch CheckpointFailed to continue without it"
            )

    @property
    def attempt(self) -> int:
        """Return the epoch of this attempt. It rises with each attempt of the history."""
        return self._begun.epoch

    @property
    def started_at(self) -> datetime:
        """Return when the run's *first* attempt was planned: the same in every retry. Use it instead of ``now()``."""
        return self._begun.started_at

    @property
    def restored(self) -> CheckpointRef | None:
        """Return the checkpoint from which this attempt started; None if it started without one."""
        return self._begun.restored

    @property
    def _begun(self) -> JobRun:
        if self._run is None:
            raise WrongUse(OUTSIDE)
        return self._run

    def _current(self) -> JobRun:
        """Return the run, for a call of the script. Raises ``WrongUse`` outside of ``with``, in a fork and in ``foreachBatch``."""
        refuse_inside()
        if self._run:
            self._run.refuse_fork()
        if CheckpointedJob._active is not self:
            raise WrongUse(OUTSIDE)
        return self._begun

    def _claim(self, uid: str) -> JobRun:
        """Note that the script uses ``uid``. Raises ``WrongUse`` at the second use: it would return the rows of the first."""
        run = self._current()
        if uid in self._uids:
            raise WrongUse(
                f"uid '{uid}' is used twice in this attempt. Give each state its own uid; in a loop, write one for each turn:"
                f' f"{uid}-{{day}}"'
            )
        self._uids.add(uid)
        return run


OPTIONS = inspect.signature(CheckpointedJob.__init__)
