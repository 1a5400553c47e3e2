"""``SparkSubmitOperator`` whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from airflow.configuration import conf as airflow_conf
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption, check_allowance
from airflow_checkpoint_provider.coordinator.journal import utc_now, utc_text
from airflow_checkpoint_provider.coordinator.liveness import Heart
from airflow_checkpoint_provider.errors import (
    AlreadyFinished,
    CheckpointError,
    CommitStateUnknown,
    InvalidConfig,
    JobSuspended,
    Refused,
    Superseded,
)
from airflow_checkpoint_provider.hooks.archive import driver_archive
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.driver_monitor import follow
from airflow_checkpoint_provider.hooks.references import HistoryReference, known_at_parse, start_in
from airflow_checkpoint_provider.hooks.spark_output import SparkOutput
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators import _cluster, _mapped, _xcom
from airflow_checkpoint_provider.operators._base import failing_for_good, generation_of, has_launched, history_of
from airflow_checkpoint_provider.operators._deferred import DeferrableLaunch
from airflow_checkpoint_provider.operators._driver_end import DriverEnd, goes_on_alone, remember_application
from airflow_checkpoint_provider.operators._items import checked_item, history_key, index_of
from airflow_checkpoint_provider.operators._launch import DriverLaunch, LaunchParameters
from airflow_checkpoint_provider.operators._link import Linked
from airflow_checkpoint_provider.operators._parameters import (
    refuse_deferral_in_client_mode,
    refuse_fixed_key,
    refuse_inside_preflight,
    refuse_no_application,
    refuse_other_languages,
    refuse_own_confs,
    refuse_shared_scope,
)
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History, check_job_id, checkpoint_id
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.storage import Store, s3_credentials
from airflow_checkpoint_provider.text import messages

STARTS = ("latest", "none")


class CheckpointedSparkSubmitOperator(Linked, DeferrableLaunch, SparkSubmitOperator):
    """Submits a Spark application whose retries and clears continue from its latest completed checkpoint.

    Takes all parameters of ``SparkSubmitOperator``. The application opens a ``CheckpointedJob``; see the README.

    The application is a Python script.

    :param job_id: static name of the job; by default ``dag_id.task_id``.
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
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``. If the default one does not exist, jobs of a local
        Spark master use ``$AIRFLOW_HOME/checkpoints``.
    :param item: what an instance of a mapped task works on, e.g. ``.expand(item=["orders", "payments"])``: the key of its history, because a
        map index is a position. Other fields may use it: ``application_args=["--table", "{{ task.item }}"]``. (templated, first)
    :param durable: True adopts a driver of this task that still runs; False fences it and submits a new one.
    :param deferrable: release the worker while the driver runs. Cluster mode only.
    """

    template_fields: Sequence[str] = ("item", *SparkSubmitOperator.template_fields, "scope", "restore", "history")

    def __init__(
        self,
        *,
        job_id: str | None = None,
        scope: str = "run",
        restore: Any = "latest",
        require_state: bool = False,
        on_clear: str = "auto",
        checkpointing: CheckpointConfig | None = None,
        checkpoint_conn_id: str = CheckpointStorageHook.default_conn_name,
        allow_non_restored_state: AllowanceOption = False,
        item: str | None = None,
        **kwargs: Any,
    ) -> None:
        # No parameter of its own, so that it is not taken from default_args, where it means the DAG's other tasks.
        deferrable = kwargs.pop("deferrable", None)
        super().__init__(**kwargs)
        self.job_id, self.scope, self.item, self.restore = job_id, scope, item, restore
        self.require_state, self.on_clear = require_state, on_clear
        self.checkpointing, self.checkpoint_conn_id, self.deferrable = checkpointing, checkpoint_conn_id, deferrable
        self._default_deferrable = (kwargs.get("default_args") or {}).get("deferrable")
        self.allow_non_restored_state = allow_non_restored_state
        self.history: str | None = None  # its URI, which Airflow shows beside the rendered templates
        refuse_deferral_in_client_mode(deferrable, self._deploy_mode)
        refuse_fixed_key(self.task_id, scope)
        self._check()
        self._launch: DriverLaunch | None = None
        self._cluster = self._defers = False  # deploy mode; whether the worker is released
        self._killed = threading.Event()
        self._output = SparkOutput(lambda line: self.log.info("%s", line))

    @classmethod
    def partial(cls, **options: Any) -> _mapped.SubmitPartial:
        """Return what ``expand`` and ``expand_kwargs`` check as far as it is known where it is written."""
        return _mapped.checked(super().partial(**options))

    def _check(self) -> None:
        """Raise ``InvalidConfig`` or ``InvalidName``. Called at parse, and in ``execute`` because mapped operators are not
        constructed at parse."""
        _airflow.check_overridden(CheckpointedSparkSubmitOperator, SparkSubmitOperator, "_get_hook")
        _airflow.check_attributes(SparkSubmitOperator, self, "_hook", "_conn_id", "_java_class")
        dag = self._own_dag()
        if self.job_id is not None:
            check_job_id(self.job_id)
        if self.get_closest_mapped_task_group() is not None:
            _mapped.check_item_of(self.task_id, self.item)
        elif self.item is not None and known_at_parse(self.item):
            checked_item(self.item, None)
        if dag:
            _mapped.refuse_shared_name(dag, _mapped.Submission.of(self, dag))
        refuse_other_languages(self.application, self._java_class)
        refuse_own_confs(self.conf)
        if self.on_clear not in ("auto", "restart", "continue"):
            raise InvalidConfig(f'on_clear={self.on_clear!r}: write "auto", "restart" or "continue"')
        check_allowance(self.allow_non_restored_state)
        if self.checkpointing is not None and not isinstance(self.checkpointing, CheckpointConfig):
            raise InvalidConfig(f"checkpointing={self.checkpointing!r}: write CheckpointConfig(...)")
        number = checkpoint_id(start_in(self.restore, *STARTS)) if known_at_parse(self.restore) else None
        if number is not None and self.scope == "run":
            raise InvalidConfig(
                f'restore={self.restore!r}: with scope="run" each run has its own history, so an id is not unique. Write a'
                " pointer, <root>/jobs/…/chk-7"
            )
        if dag:
            refuse_shared_scope(self.task_id, self.scope, dag)

    def _own_dag(self) -> DAG | None:
        """Return the DAG; None for an operator that gets its DAG later."""
        return self.dag if self.has_dag() else None  # type: ignore[no-untyped-call]

    # -- running -----------------------------------------------------------------------------------------------------

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        super().render_template_fields(context, jinja_env)
        with contextlib.suppress(Exception):  # execute raises the same error
            ti = context["ti"]
            self.history = f"{self._connect()[1].uri}/{self._history_of(ti).prefix}"

    def _history_of(self, ti: Any) -> History:
        """Return the history of the job, or of the item, once the templates are rendered."""
        item = None if self.item is None else checked_item(self.item, index_of(ti))
        return history_of(self.job_id, self.scope, ti, ti.task_id, item)

    def reference(self, ti: Any) -> HistoryReference:
        return HistoryReference(self.checkpoint_conn_id, self._history_of(ti).prefix, ti.run_id)

    def _connect(self) -> tuple[CheckpointedSparkSubmitHook, Store]:
        """Return the hook, which is made once, and the store of the checkpoints."""
        self._hook = hook = self._own_hook or self._get_hook()
        return hook, CheckpointStorageHook(self.checkpoint_conn_id, hook.master, self._conn_id).get_store()

    @property
    def _own_hook(self) -> CheckpointedSparkSubmitHook | None:
        """Return the hook that was made last; the parent keeps it."""
        return self._hook if isinstance(self._hook, CheckpointedSparkSubmitHook) else None

    def execute(self, context: Any) -> dict[str, Any] | None:  # type: ignore[override]
        ti = context["ti"]
        with failing_for_good():
            if index_of(ti) is not None:
                _mapped.require_item(self.task_id, self.item)
            self._check()
            refuse_no_application(self.application)
            refuse_inside_preflight(os.environ)
            self._refuse_backfill(context)
            hook, _ = self._connect()
            self._output.log(messages.untried(_airflow.untried()))
            self._defers = self._whether_to_defer(hook)
            if not self._defers:
                hook.check_tracking()
            self._launch = launch = self.new_launch(context)
            try:
                self._plan(launch)
            except AlreadyFinished:
                self._output.log(messages.finished(launch.state, ti.run_id))
                launch.wait_for_process()
                return self._end_of(launch).finish()
            key = history_key(launch.parameters.history.item)
            context["task_state_store"].set(key, launch.state.incarnation, retention=NEVER_EXPIRE)
            self.push_launch(ti, launch, None)
            return self._follow(ti, launch) if launch.adopted else self._submit(context, launch)

    def new_launch(self, context: Any) -> DriverLaunch:
        hook, store = self._connect()
        s3_credentials.refuse_for_jobs(store)
        self._cluster = hook.deploy_mode == "cluster"
        ti, parameters = context["ti"], self._launch_parameters(context, store)
        state_of = functools.partial(_airflow.task_state, ti.dag_id, ti.run_id, ti.task_id)
        return DriverLaunch(store, parameters, self._output.log, killed=self._killed, index_state=state_of)

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
            self._output.log(
                messages.refused(f"{launch.parameters.history.job}, run {launch.parameters.token.run}", error)
            )
            raise

    def _launch_parameters(self, context: Any, store: Store) -> LaunchParameters:
        ti, dag_run = context["ti"], context["dag_run"]
        history = self._history_of(ti)
        generation = generation_of(context, self.retries, functools.partial(has_launched, store, history, ti))
        starts_over = generation.discarded and self.on_clear == "auto"
        return LaunchParameters(
            history=history,
            token=Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, item=history.item, generation=generation.number),
            try_number=ti.try_number,
            run_after=utc_text(dag_run.run_after),
            now=utc_now(),
            restore=start_in(self.restore, *STARTS),
            require_state=self.require_state,
            on_clear="restart" if starts_over else self.on_clear,
            discarded=starts_over,
            durable=bool(self.durable),
            incarnation=context["task_state_store"].get(history_key(history.item), None),
            map_index=index_of(ti) if history.item is not None else None,
            connection=self.checkpoint_conn_id,
        )

    def _refuse_backfill(self, context: Any) -> None:
        if self.scope == "job" and context["dag_run"].run_type == "backfill":
            error = Refused(
                'scope="job": a backfill would rewind the live state. Give the backfill its own job_id and restore=<pointer>'
            )
            raise AirflowFailException(str(error))

    def _whether_to_defer(self, hook: CheckpointedSparkSubmitHook) -> bool:
        """Return whether to release the worker while the driver runs. Say that a default does not hold in client mode."""
        refuse_deferral_in_client_mode(self.deferrable, hook.deploy_mode or "client")
        wanted = self.deferrable if self.deferrable is not None else self._default_deferrable
        if wanted is None:
            wanted = airflow_conf.getboolean("operators", "default_deferrable", fallback=False)
        if wanted and hook.deploy_mode != "cluster":
            self._output.log(["not deferred: in client mode the driver is a child of this task"])
        defers = bool(wanted) and hook.deploy_mode == "cluster"
        if defers:
            _cluster.check(hook)
        return defers

    def _get_hook(self) -> CheckpointedSparkSubmitHook:
        """Return the hook; once a launch is planned, with the launch's settings. The parent calls this too, after it has
        added to ``conf``."""
        arguments = _airflow.spark_hook_arguments(self)
        keys: dict[str, str] = {}
        archive: str | None = None
        if self._launch is not None and self._launch.record is not None:
            keys = {} if self._cluster else s3_credentials.keys(self._launch.store)
            settings = self._launch.settings(self.checkpointing, check_allowance(self.allow_non_restored_state))
            arguments["conf"] = {**(self.conf or {}), **settings.to_confs()}
            archive = str(driver_archive())
            if self._defers:
                arguments["conf"] |= _cluster.WITHOUT_WAITING
                arguments["track_driver_via_k8s_api"] = True  # else the hook misses the driver's exit code
        return CheckpointedSparkSubmitHook(**arguments, archive=archive, environment=keys, output=self._output)

    def _submit(self, context: Any, launch: DriverLaunch) -> dict[str, Any]:
        """Submit the driver and wait for its end, by the parent's ``execute``. Threads run beside it."""
        ended = threading.Event()
        failure: BaseException | None = None
        with launch.heartbeat() as heart:
            beside = self._start_threads(context["ti"], launch, heart, ended)
            durable, self.durable = self.durable, False
            self._hook = None  # the parent makes a new one
            try:
                if self._killed.is_set():
                    raise AirflowException("killed before the submit")
                super().execute(context)
            except Exception as error:  # noqa: BLE001 - each way to track a driver raises its own
                failure = error
            finally:
                self.durable = durable
                ended.set()
                for thread in beside:
                    thread.join(timeout=10)
        hook = self._own_hook
        if failure is not None and hook and not self._killed.is_set() and goes_on_alone(hook, launch):
            self._output.log([messages.goes_on_alone(hook.yarn_application)])
        elif failure is not None or not self._defers or not hook:
            return self.end_launch(launch, hook.returncode if hook else None, failure)
        if self._defers:
            _cluster.submitted(hook, context, launch.number, self.item)
        return self._follow(context["ti"], launch)

    def execute_resumable(self, context: Any) -> Any:
        """Do as the parent does, where the provider follows the driver. A task that is deferred only submits it."""
        return self.submit_job(context) if self._defers else super().execute_resumable(context)

    def ask_cluster(self, context: Any, launch: DriverLaunch) -> tuple[bool | None, str]:
        return _cluster.ask(self, context, launch.number, self.item)

    def _start_threads(
        self, ti: Any, launch: DriverLaunch, heart: Heart, ended: threading.Event
    ) -> list[threading.Thread]:
        """Start a thread that follows the journal, and one that cleans up older runs."""

        def on_attach(attempt: int | None) -> None:
            heart.stop()
            self.push_launch(ti, launch, attempt)

        monitor = functools.partial(
            follow, launch, ended, log_checkpoints=self._cluster, on_attach=on_attach, restarts=self._cluster
        )
        collector = functools.partial(launch.collect_older_runs, ended)
        named: dict[str, Callable[[], object]] = {"checkpoint-follow": monitor, "checkpoint-garbage": collector}
        threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in named.items()]
        for thread in threads:
            thread.start()
        return threads

    def push_launch(self, ti: Any, launch: DriverLaunch, attempt: int | None) -> None:
        if self.do_xcom_push:
            _xcom.push_launch(ti, launch, attempt)

    def _follow(self, ti: Any, launch: DriverLaunch) -> dict[str, Any]:
        """Follow a driver that runs elsewhere by the journal, until it ends: here, or in a trigger."""
        if self._defers:
            return self.follow_deferred(launch)

        def on_attach(attempt: int | None) -> None:
            self.push_launch(ti, launch, attempt)
            if hook := self._own_hook:
                remember_application(hook, launch, attempt)

        attempt = follow(launch, self._killed, log_checkpoints=True, on_attach=on_attach)
        if self._killed.is_set():
            raise AirflowException("this task was killed while it followed a driver")
        return self.end_followed(launch, attempt)

    # -- the end -----------------------------------------------------------------------------------------------------

    def end_followed(self, launch: DriverLaunch, attempt: AttemptRecord | None) -> dict[str, Any]:
        return self._end_of(launch).of_followed(attempt)

    def end_launch(self, launch: DriverLaunch, exit_code: int | None, failure: BaseException | None) -> dict[str, Any]:
        return self._end_of(launch).of_exit(exit_code, failure)

    def _end_of(self, launch: DriverLaunch) -> DriverEnd:
        return DriverEnd(launch, self._output, self.log, self._own_hook, in_cluster=self._cluster)

    def on_kill(self) -> None:
        """Ask the driver to stop through the journal, which also reaches a lost host; then kill it as the parent does."""
        self._killed.set()
        if self._launch is not None:
            with contextlib.suppress(CheckpointError):
                self._launch.request_stop("the task was killed")
        if self._hook is not None:  # a new hook would look up its connection, for which there is no time
            super().on_kill()
