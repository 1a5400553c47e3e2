"""A job's run as an attempt: it goes on from its restore point, and takes checkpoints. Runs in the Spark driver."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_checkpoint_provider.coordinator.oom_kills import OomKills
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.spark import s3a
from airflow_checkpoint_provider.spark.attempt.ending import DEPLOY_MODE, timeout_in
from airflow_checkpoint_provider.spark.attempt.memory import cause_of_jvm_death
from airflow_checkpoint_provider.spark.attempt.progress import Progress
from airflow_checkpoint_provider.spark.attempt.settings import Launched, Settings, script
from airflow_checkpoint_provider.spark.attempt.start import Program, begin
from airflow_checkpoint_provider.spark.attempt.watch import AttemptWatch
from airflow_checkpoint_provider.spark.checkpoints import copies
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.checkpoints.participants import Participants
from airflow_checkpoint_provider.spark.end import JobEnd, exit_code
from airflow_checkpoint_provider.spark.job_run import CheckpointRef, JobRun
from airflow_checkpoint_provider.spark.loops.frame import Frame
from airflow_checkpoint_provider.spark.loops.frames import Frames
from airflow_checkpoint_provider.spark.loops.keyed import KeyedChange, KeyedState, OpenedKeyed
from airflow_checkpoint_provider.spark.loops.loops import LoopParts, Loops
from airflow_checkpoint_provider.spark.loops.pace import Every
from airflow_checkpoint_provider.spark.loops.turns import LoopTurns
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.process.watchdog import Watchdog, check_watchable, jvm_pid
from airflow_checkpoint_provider.spark.queries.batch_function import refuse_inside
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.queries.timer import CheckpointTimer
from airflow_checkpoint_provider.spark.sinks.base import Sink
from airflow_checkpoint_provider.spark.sinks.commits import Commits
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.sinks.writer import AttemptSinkWriter, SinkWriter
from airflow_checkpoint_provider.spark.stages.application import Application, digest
from airflow_checkpoint_provider.spark.stages.kept_files import KeptFiles
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from airflow_checkpoint_provider.spark.stages.parts import PartStages
from airflow_checkpoint_provider.spark.stages.stage import Stages
from airflow_checkpoint_provider.spark.state.registered import CheckpointedObject, Registered
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.spark.state.value import Value
from airflow_checkpoint_provider.spark.versions import untried
from airflow_checkpoint_provider.text import state_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

TERMINATED = 128 + signal.SIGTERM  # as a shell reports it


class AttemptRun(JobRun):
    """An attempt with its parts. To make one is to begin it. ``task`` is None for a script without Airflow."""

    def __init__(self, spark: SparkSession, settings: Settings, task: Launched | None) -> None:
        super().__init__(spark)
        self._task, self._kills = task, OomKills()
        for line in settings.notes:
            say(line)
        application = digest(spark, script(), sys.argv[1:])
        for note in filter(None, (untried(spark.version), application.note)):
            say(note)
        s3a.prepare(spark, settings.open_store())
        jvm = jvm_pid(spark)
        check_watchable(jvm)
        self.attempt = begin(settings, Program(application.digest, application.stored_parts, spark.version))
        self._end_timeout_s = timeout_in(spark.conf.get(DEPLOY_MODE, None))
        self.watchdog = Watchdog(jvm, self._jvm_died, self._terminated).start()
        try:
            self._prepare(settings, application)
            observers = self._progress.report, self._queries.report, self.checkpointer.on_watch
            AttemptWatch(self.attempt, self._stopped, observers).start()
            self._attach(settings.job, application)
        except BaseException as error:
            self.attempt.end.failed(exit_code(error))
            self.watchdog.stop()
            raise

    def _prepare(self, settings: Settings, application: Application) -> None:
        """Make the parts of the attempt, with its restored states."""
        attempt, spark, config = self.attempt, self.spark, settings.config
        seal, point = copies.renamed(attempt), attempt.restored.point
        self.states = States.restored(seal, attempt.run.key, elsewhere=bool(point and point.pointer))
        self._registered = Registered(self.states, seal.id if seal else None)
        self._queries = Queries(spark, attempt, self.states, config, settings.allow_non_restored_state)
        self._sinks = Sinks(
            spark, attempt, self.states,
            elsewhere=bool(point and point.pointer), allowed=settings.allow_non_restored_state,
        )  # fmt: skip
        self._commits = commits = Commits(attempt, self._sinks)
        participants = Participants(self.states, self._registered, self._queries, self._sinks, commits)
        self.checkpointer = Checkpointer(attempt, participants, spark.version, config)
        self._timer = CheckpointTimer(attempt, self._queries, self.checkpointer, config)
        self.stages = Stages(spark, attempt, self.states, self.checkpointer, application)
        self._files = KeptFiles(attempt, self.states, self.stages, self.checkpointer)
        self._frames = Frames(spark, attempt, self.states, self.stages)
        self.loops = self._loops(settings, application)
        self._unsaid = state_messages.not_paced(config)  # until there is a stage
        self._progress = Progress(spark, attempt, self.checkpointer.protection)
        self._end = JobEnd(
            spark=spark,
            attempt=attempt,
            states=self.states,
            registered=self._registered,
            checkpointer=self.checkpointer,
            queries=self._queries,
            sinks=self._sinks,
            loops=self.loops,
            commits=commits,
            timer=self._timer,
            launched=self._task,
            allow_non_restored_state=settings.allow_non_restored_state,
            kills=self._kills,
        )

    def _loops(self, settings: Settings, application: Application) -> Loops:
        parts = LoopParts(
            attempt=self.attempt,
            states=self.states,
            sinks=self._sinks,
            checkpointer=self.checkpointer,
            frames=self._frames,
            application=application.digest,
            interval_s=settings.config.interval_s,
            allow_non_restored_state=settings.allow_non_restored_state,
        )
        return Loops(parts, self._check_call)

    def _attach(self, job: str, application: Application) -> None:
        """Copy the states if they lie elsewhere, which may take long. Then the script begins."""
        attempt = self.attempt
        self.states.snapshots = copies.import_states(attempt, self.states.snapshots)
        line = state_messages.application_line(
            application.digest, application.stored_parts, self._attempt_before(), attempt.run
        )
        say(f"attempt {attempt.epoch} of {job}, run {attempt.run.key}: {line}")
        context = self.spark.sparkContext
        self.checkpointer.protection.attach()
        attempt.activity.attach(line, context.applicationId, context.uiWebUrl or "")
        self.checkpointer.remove_garbage()

    def _attempt_before(self) -> AttemptRecord | None:
        listed = self.attempt.journal.state.attempts
        earlier = (record for record in listed if record.epoch < self.attempt.epoch)
        return max(earlier, key=lambda record: record.epoch, default=None)

    def finish(self) -> None:
        """Give pending checkpoints their outcome, save changed states, and finish the run. If that raises, the attempt has failed."""
        try:
            self._end.finish()
        except BaseException as error:
            self._end.fail(error)
            raise
        finally:
            self.watchdog.stop()

    def fail(self, error: BaseException | None) -> None:
        """End the attempt as *failed*. Raises ``Damaged`` if that was the cause.

        Under a task, raises ``SystemExit`` with code 3 if no retry can help.
        """
        try:
            self._end.fail(error)
        finally:
            self.watchdog.stop()
        if isinstance(error, SystemExit) and exit_code(error) == 0:  # ``sys.exit(256)`` would be success
            raise SystemExit(int(ExitCode.FAILED))

    # -- the end from outside ----------------------------------------------------------------------------------------

    def _jvm_died(self) -> NoReturn:
        why, cause = "its JVM is gone, and the driver cannot work without it", cause_of_jvm_death(self._kills)
        self._end_in_order("failed", ExitCode.FAILED, why, cause)

    def _terminated(self) -> NoReturn:
        self._end_in_order("failed", TERMINATED, "SIGTERM")

    def _stopped(self, reason: str) -> NoReturn:
        self._end_in_order("cancelled", ExitCode.OVER, f"stopped: {reason}")

    def _end_in_order(self, outcome: str, code: int, why: str, cause: str = "") -> NoReturn:
        self.attempt.end.in_order(outcome, code, why, self._save_rows, self._end_timeout_s, cause)

    def _save_rows(self, timeout_s: float) -> bool:
        """Return whether all proved rows are saved. A driver may be terminated before its states are read: then it has none."""
        made: Checkpointer | None = vars(self).get("checkpointer")
        return made is None or made.save_rows(timeout_s)

    # -- in the script -----------------------------------------------------------------------------------------------

    def stage(self, uid: str, df: DataFrame | Callable[[], DataFrame], version: str | None, inputs: str) -> DataFrame:
        self._say_pace()
        self.loops.left()
        return self.stages.run(uid, df, version, inputs)

    def stage_in_parts(self, uid: str, source: Any, parts: Parts, version: str | None, inputs: str) -> DataFrame:
        self._say_pace()
        self.loops.left()
        return PartStages(self.stages).run(uid, source, parts, version, inputs)

    def _say_pace(self) -> None:
        while self._unsaid:
            say(self._unsaid.pop())

    def files(self, uid: str, write: Callable[[str], object], version: str | None, *, local: bool) -> str:
        self.loops.left()
        return self._files.run(uid, write, version, local=local)

    def value(self, uid: str, default: Any) -> Value:
        self.states.claim_value(uid)
        return Value(self.states.values, uid, default, self._set_value)

    def _set_value(self, uid: str, value: Any) -> None:
        self._check_call()
        self.states.set_value(uid, value)
        self.loops.note_value(uid)

    def _check_call(self) -> None:
        """Check a call of an object that the script got from the job. Raises ``WrongUse``, and ends the process if the attempt is over."""
        refuse_inside()
        self.refuse_fork()
        self.attempt.leaving.if_over()

    def register(self, uid: str, obj: CheckpointedObject) -> None:
        self.attempt.writer.check_not_fenced()
        self._registered.add(uid, obj)

    def sink(self, uid: str, sink: Sink, *, gated: bool) -> SinkWriter:
        opened = self._sinks.claim(uid, sink, gated=gated)
        self._commits.confirm_restored()
        return AttemptSinkWriter(opened, self._sinks, self.stages, self.checkpointer)

    def txn(self, uid: str) -> dict[str, str]:
        self.stages.refuse_in_part(f"txn('{uid}') was called")
        application, number = self._sinks.number(uid, self.stages.here())
        return {"txnAppId": application, "txnVersion": str(number)}

    def iterate(self, uid: str, items: Iterable[Any], every: Every) -> LoopTurns:
        return self.loops.iterate(uid, items, every)

    def once(self, uid: str, items: Iterable[Any]) -> LoopTurns:
        return self.loops.once(uid, items)

    def frame(self, uid: str, initial: DataFrame | Callable[[], DataFrame]) -> Frame:
        opened = self._frames.open(uid, initial)

        def change(df: DataFrame) -> None:
            self._check_call()
            self.loops.change(opened, lambda: self._frames.change(opened, df))

        return Frame(lambda: self._frames.rows(opened), change)

    def keyed_state(
        self, uid: str, key: Sequence[str] | str, schema: StructType | str | None, max_parallelism: int
    ) -> KeyedState:
        opened = OpenedKeyed.of(uid, key, schema, max_parallelism, self.spark)
        self._frames.open_keyed(opened)

        def change(how: KeyedChange, df: DataFrame) -> None:
            self._check_call()
            self.loops.change(opened, lambda: self._frames.change_keyed(opened, how, df))

        return KeyedState(opened, lambda: self._frames.rows(opened), change)

    def start_query(
        self, uid: str, writer: DataStreamWriter, after: Sequence[str], adopt: str | None, *, rescale: bool
    ) -> Query:
        self._timer.start()
        query = self._queries.start(uid, writer, after=after, adopt=adopt, rescale=rescale)
        self._timer.settle()
        return query

    def await_queries(self) -> None:
        self._queries.wait()

    def checkpoint(self, *, wait: bool) -> bool:
        self.loops.save("checkpoint()")
        return self.checkpointer.checkpoint("checkpoint()", wait=wait)

    @property
    def epoch(self) -> int:
        return self.attempt.epoch

    @property
    def started_at(self) -> datetime:
        return datetime.fromisoformat(self.attempt.run.started_at)

    @property
    def restored(self) -> CheckpointRef | None:
        point = self.attempt.restored.point
        if point is None:
            return None
        state, store, keys = self.attempt.journal.state, self.attempt.store, self.attempt.keys
        number = point.id or self.attempt.restored.id_floor
        return CheckpointRef(state.job, state.scope, number, point.pointer or str(keys.pointer(store.uri, number)))
