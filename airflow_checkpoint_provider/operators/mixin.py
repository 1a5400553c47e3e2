"""The mixin by which an operator that submits a Spark application gets checkpoints. It knows no provider. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from airflow.configuration import conf as airflow_conf
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.assignment import check_allowance
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Liveness, driver_keys
from airflow_checkpoint_provider.errors import (
    AlreadyFinished,
    CheckpointError,
    CommitStateUnknown,
    InvalidConfig,
    JobSuspended,
    NotSupportedYet,
    Superseded,
    as_checkpoint_error,
)
from airflow_checkpoint_provider.hooks.archive import driver_archive
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.driver_monitor import follow
from airflow_checkpoint_provider.hooks.spark_output import SparkOutput
from airflow_checkpoint_provider.operators import _earlier, _submitted_job, _xcom
from airflow_checkpoint_provider.operators._base import failing_for_good
from airflow_checkpoint_provider.operators._deferred import DeferrableLaunch
from airflow_checkpoint_provider.operators._driver_end import DriverEnd, Submission
from airflow_checkpoint_provider.operators._job_parameters import JobParameters
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.operators._parameters import refuse_inside_preflight
from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.storage import s3_credentials
from airflow_checkpoint_provider.text import launch_messages

MEMORY = ("memory_after_oom", "memory_limit")  # parameters of CheckpointedSparkSubmitOperator alone


class CheckpointedJobMixin(JobParameters, DeferrableLaunch):
    """Gives an operator that submits a Spark application what ``CheckpointedSparkSubmitOperator`` has.

    Write your class as ``class MyOperator(CheckpointedJobMixin, TheirOperator)`` with the method ``hand_over``. ``TheirOperator`` must wait
    until the application has ended. Retries and clears then continue from the latest completed checkpoint. The application is a Python
    script that opens a ``CheckpointedJob``.

    :param job_id: static name of the job; by default ``dag_id.task_id``, with a digest if that is no job id or the id of the DAG has a dot.
    :param scope: "run": each DAG run has its own history. "job": all runs share one history. Any other template is the key of a
        history that some runs share, e.g. ``"{{ ds_nodash[:6] }}"`` for those of a month; as for "job", give the DAG
        ``max_active_runs=1``, and ``retention=`` a ``KeepWithin(…)`` that ends the history when no other run will come. (templated)
    :param restore: where a *run* starts: "latest", "none", the id of a checkpoint (``scope="job"``), a pointer, or the output
        of a task that made a checkpoint or a savepoint. Retries and clears continue the run and ignore this. (templated)
    :param require_state: refuse to start without state.
    :param allow_non_restored_state: what to do with restored state that the application has not used when it succeeds.
        False: log it and keep it, or fail if the script may have used a wrong name, unless the script says otherwise.
        True, or a list of uids: drop it. "keep": keep it. ``{"weekly": "keep", "old": "drop"}`` says it by uid.
    :param on_clear: "auto" starts a finished run again from where it started, and resumes a run that did not finish, unless the clear
        discarded what Airflow had stored for the task (Airflow 3.4). "restart" always starts the run again; "continue" always resumes it.
    :param checkpointing: a ``CheckpointConfig``; by default that of the script.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``.
    :param max_restore_age: how old the checkpoint may be from which a *run* starts, e.g. ``timedelta(days=2)``. An older one is refused
        (CKP410), or only logged: ``(timedelta(days=2), "warn")``. Retries and clears continue their run, whatever the age.
    :param item: what an instance of a mapped task works on, e.g. ``.expand(item=["orders", "payments"])``: the key of its history, because a
        map index is a position. Other fields may use it: ``{{ task.item }}``. (templated, first)
    :param archive: how this package reaches the driver. "code": as an archive that lies where ``code`` of the connection leads. None: the
        driver's image has the same version of it.
    """

    needs: ClassVar[Mapping[str, Any]] = {}
    """The arguments of the other operator with which it waits for the driver, and submits a new one at each try. A DAG with others is
    refused."""

    job_attribute: ClassVar[str] = ""
    """The attribute in which the other operator keeps the name of the job that it has submitted, and by which its ``on_kill`` kills it."""

    from_this_host: ClassVar[bool] = False
    """Whether the other operator submits files of this host, so that the package needs no place that the cluster reads."""

    def __init__(self, **kwargs: Any) -> None:
        for name in MEMORY:
            if kwargs.pop(name, None) is not None:
                raise NotSupportedYet(
                    f"{name}=: {type(self).__name__} does not know what memory its service gives a driver that asks for none, so a raised value"
                    " could be less. CheckpointedSparkSubmitOperator has it. Leave it out, and write the memory where the service takes it"
                )
        for name, value in self.needs.items():
            if kwargs.setdefault(name, value) != value:
                raise NotSupportedYet(
                    f"{name}={kwargs[name]!r}: a checkpointed task needs {name}={value!r} here, so that it waits for its driver, and each try"
                    " submits its own. Leave it out"
                )
        super().__init__(**kwargs)
        self._launch: DriverLaunch | None = None
        self._defers = False  # whether the worker is freed
        self._in_cluster = True  # so the driver's exit code does not reach this task
        self._was_killed = threading.Event()  # KubernetesPodOperator has an attribute _killed
        self._output = SparkOutput(lambda line: self.log.info("%s", line))
        self.check_parameters()

    # -- what an operator says ---------------------------------------------------------------------------------------

    def hand_over(self, launch: HandOver) -> None:
        """Put the launch into the fields from which the other operator submits. Called once, just before its ``execute``."""
        raise NotImplementedError(f"{type(self).__name__} needs the method hand_over")

    def prepare(self) -> None:
        """Check what is known when the templates are rendered, and before anything is planned. Raise ``CheckpointError``."""

    def submission(self) -> Submission | None:
        """Return what the process that has submitted the driver knows of it, besides the journal; None: nothing."""
        return None

    def exit_code(self, failure: BaseException | None) -> int | None:
        """Return the exit code of the process that has submitted the driver; None if there is none to tell."""
        return 0 if failure is None else None

    def submitted(self, context: Any, launch: DriverLaunch) -> None:
        """Take note that the other operator is done, and the driver goes on."""

    def goes_on_alone(self, launch: DriverLaunch) -> str | None:
        """Return a line for the log if the driver lives, though the other operator has failed. It is followed by the journal then."""
        attempt = launch.attempt()
        if attempt is None or attempt.outcome is not None:
            return None
        lives = Liveness(launch.store, launch.beats).wait(driver_keys(launch.keys, launch.state))
        return launch_messages.goes_on_alone() if lives else None

    def remember_job(self, context: Any, launch: DriverLaunch) -> None:
        """Remember the job of a driver that has attached, for a later try that adopts it."""
        job = getattr(self, self.job_attribute) if self.job_attribute else None
        if job is not None:  # Livy's first batch is 0
            _submitted_job.remember(context, launch, job)

    def adopt(self, context: Any, launch: DriverLaunch) -> None:
        """Let ``on_kill`` reach the job of a driver that an earlier try has submitted."""
        job = _submitted_job.known(context, launch)
        if self.job_attribute and job is not None:
            setattr(self, self.job_attribute, job)

    def driver_archive(self) -> str | None:
        """Return where the archive with the driver's part of this package is, which is written if it is not there. None if the driver's image
        has the package. Raise ``InvalidConfig`` if the connection does not say where.
        """
        if self.archive is None:
            return None
        published = CheckpointStorageHook(self.checkpoint_conn_id).publish_archive()
        if published is None and not self.from_this_host:
            raise InvalidConfig(
                f"connection {self.checkpoint_conn_id!r} does not say where drivers find this package. Add to its extra a place that the"
                ' cluster reads, and that only Airflow and administrators may write: "code": "s3a://bucket/code". Or install the package in'
                " the image of the drivers, and write archive=None"
            )
        return published or str(driver_archive())

    # -- running -----------------------------------------------------------------------------------------------------

    def execute(self, context: Any) -> Any:
        ti = context["ti"]
        with failing_for_good():
            with _earlier.naming_its_driver(context, self.item):
                archive = self._prepared(context)
                self._launch = launch = self.new_launch(context)
            try:
                self._plan(launch)
            except AlreadyFinished:
                self._output.log(launch_messages.finished(launch.state, ti.run_id))
                launch.wait_for_process()
                return self._end_of(launch).finish()
            _earlier.remember(context, launch)
            self.push_launch(ti, launch, None)
            if launch.adopted:
                self.adopt(context, launch)
                return self._follow(context, launch)
            settings = launch.settings(self.checkpointing, check_allowance(self.allow_non_restored_state))
            self.hand_over(HandOver(settings.to_confs(), archive))
            return self._submit(context, launch)

    def _prepared(self, context: Any) -> str | None:
        """Check all that is known before anything is planned, and return where the driver finds this package."""
        self.check_parameters()
        self.refuse_instance(context)
        refuse_inside_preflight(os.environ)
        self._output.log(launch_messages.untried(_airflow.untried()))
        by_default = airflow_conf.getboolean("operators", "default_deferrable", fallback=False)
        if by_default and "deferrable" in self.needs:
            self._output.log([f"not deferred: {type(self).__name__} waits for its driver in this version"])
        self.prepare()
        return self.driver_archive()

    def new_launch(self, context: Any) -> DriverLaunch:
        store = self.checkpoint_store()
        s3_credentials.refuse_for_jobs(store)
        ti, parameters = context["ti"], self.launch_parameters(context, store)
        state_of = functools.partial(_airflow.task_state, ti.dag_id, ti.run_id, ti.task_id)
        return DriverLaunch(store, parameters, self._output.log, killed=self._was_killed, index_state=state_of)

    def _plan(self, launch: DriverLaunch) -> None:
        """Plan the launch, or log why nothing is submitted."""
        try:
            launch.plan()
        except (AlreadyFinished, Superseded, CommitStateUnknown):
            raise
        except JobSuspended:
            launch.publish_savepoints()
            self._end_of(launch).wait_suspended()
        except CheckpointError as error:
            self._output.log(launch_messages.refused(launch.title, error))
            raise

    def _submit(self, context: Any, launch: DriverLaunch) -> dict[str, Any]:
        """Submit the driver and wait for its end, by the other operator's ``execute``. Threads run beside it."""
        failure = self._execute_other(context, launch)
        alone = None
        if failure is not None and not self._was_killed.is_set():
            alone = self.goes_on_alone(launch)
            self._output.log(filter(None, (alone,)))
        if not alone and (failure is not None or not self._defers):
            return self.end_launch(launch, self.exit_code(failure), failure)
        self.submitted(context, launch)
        return self._follow(context, launch)

    def _execute_other(self, context: Any, launch: DriverLaunch) -> BaseException | None:
        """Return the error of the other operator, None without any. Its own way to find a job that an earlier try has submitted is off."""
        ended = threading.Event()
        with launch.heartbeat() as heart:
            beside = self._start_threads(context, launch, heart, ended)
            durable: Any = getattr(self, "durable", None)
            self.durable = False
            try:
                if self._was_killed.is_set():
                    raise AirflowException("killed before the submit")
                super().execute(context)
            except TaskDeferred:
                return AirflowException(f"{type(self).__name__} has deferred itself, so it would not follow its driver")
            except Exception as error:  # noqa: BLE001 - each way to track a driver raises its own
                return error
            finally:
                self.durable = durable
                ended.set()
                for thread in beside:
                    thread.join(timeout=10)
        return None

    def _start_threads(
        self, context: Any, launch: DriverLaunch, heart: Heart, ended: threading.Event
    ) -> list[threading.Thread]:
        """Start a thread that follows the journal, and one that cleans up older runs."""

        def on_attach(attempt: int | None) -> None:
            heart.stop()
            self.push_launch(context["ti"], launch, attempt)
            self.remember_job(context, launch)

        def monitor() -> None:
            beyond = self._in_cluster
            try:
                follow(launch, ended, log_checkpoints=beyond, on_attach=on_attach, restarts=beyond)
            except Exception as error:  # noqa: BLE001 - no other code would report an error of this thread
                launch.log([launch_messages.not_followed(as_checkpoint_error(error, "the journal"))])

        collector = functools.partial(launch.collect_older_runs, ended)
        named: dict[str, Callable[[], object]] = {"checkpoint-follow": monitor, "checkpoint-garbage": collector}
        threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in named.items()]
        for thread in threads:
            thread.start()
        return threads

    def push_launch(self, ti: Any, launch: DriverLaunch, attempt: int | None) -> None:
        if self.do_xcom_push:
            _xcom.push_launch(ti, launch, attempt)

    def _follow(self, context: Any, launch: DriverLaunch) -> dict[str, Any]:
        """Follow a driver that runs elsewhere by the journal, until it ends: here, or in a trigger."""
        if self._defers:
            attempt = launch.attempt()
            if attempt is None or attempt.outcome is None:
                self.defer_launch(context, launch, launch.beats.still)
        on_attach = functools.partial(self.attached, context["ti"], launch)
        attempt = follow(launch, self._was_killed, log_checkpoints=True, on_attach=on_attach)
        if self._was_killed.is_set():
            raise AirflowException("this task was killed while it followed a driver")
        return self.end_followed(launch, attempt)

    def attached(self, ti: Any, launch: DriverLaunch, attempt: int | None) -> None:
        """Take note of the attempt of a driver that is followed by the journal."""
        self.push_launch(ti, launch, attempt)

    # -- the end -----------------------------------------------------------------------------------------------------

    def end_followed(self, launch: DriverLaunch, attempt: AttemptRecord | None) -> dict[str, Any]:
        return self._end_of(launch).of_followed(attempt)

    def end_launch(self, launch: DriverLaunch, exit_code: int | None, failure: BaseException | None) -> dict[str, Any]:
        return self._end_of(launch).of_exit(exit_code, failure)

    def _end_of(self, launch: DriverLaunch) -> DriverEnd:
        return DriverEnd(launch, self._output, self.log, self.submission(), in_cluster=self._in_cluster)

    def on_kill(self) -> None:
        """Ask the driver to stop through the journal, which also reaches a lost host; then kill it as the other operator does."""
        self._was_killed.set()
        if self._launch is not None:
            with contextlib.suppress(CheckpointError):
                self._launch.request_stop("the task was killed")
        self.kill_job()

    def kill_job(self) -> None:
        super().on_kill()
