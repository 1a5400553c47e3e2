"""``SparkSubmitOperator`` whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow.configuration import conf as airflow_conf
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators import _cluster, _memory, _submitted_job
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.operators._launched import LaunchParameters
from airflow_checkpoint_provider.operators._mapped import SubmitPartial
from airflow_checkpoint_provider.operators._parameters import (
    refuse_deferral_in_client_mode,
    refuse_no_application,
    refuse_other_languages,
    refuse_own_confs,
)
from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin
from airflow_checkpoint_provider.policies.memory import MemoryPlan, memory_policy
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.storage import Store, s3_credentials
from airflow_checkpoint_provider.text import launch_messages


class CheckpointedSparkSubmitOperator(CheckpointedJobMixin, SparkSubmitOperator):
    """Submits a Spark application whose retries and clears continue from its latest completed checkpoint.

    Takes all parameters of ``SparkSubmitOperator``, and those of ``CheckpointedJobMixin``. The application is a Python script that opens a
    ``CheckpointedJob``; see the README.

    :param checkpoint_conn_id: connection of type ``checkpoint_storage``. If the default one does not exist, jobs of a local
        Spark master use ``$AIRFLOW_HOME/checkpoints``.
    :param archive: how this package reaches the driver. "code": as an archive that lies where ``code`` of the connection leads, or without
        that on this worker. None: the driver's image has the same version of it.
    :param memory_after_oom: by which factor a retry gets more memory after a death that was proved to be for want of memory: ``"1.5 x"``, or a
        number. None: never.
    :param memory_limit: the largest value that ``memory_after_oom`` gives a conf, such as ``"16g"``. None: no limit.
    :param durable: True adopts a driver of this task that still runs; False fences it and submits a new one.
    :param deferrable: free the worker while the driver runs. Cluster mode only.
    """

    from_this_host = True

    def __init__(
        self, *, memory_after_oom: str | float | None = None, memory_limit: str | None = None, **kwargs: Any
    ) -> None:
        # No parameter of its own, so that it is not taken from default_args, where it means the DAG's other tasks.
        self.deferrable = kwargs.pop("deferrable", None)
        self._handed: HandOver | None = None
        self.memory_after_oom, self.memory_limit = memory_after_oom, memory_limit
        super().__init__(**kwargs)
        self._in_cluster = False  # until the connection has been looked up
        self._default_deferrable = (kwargs.get("default_args") or {}).get("deferrable")

    def check_parameters(self) -> None:
        _airflow.check_overridden(CheckpointedSparkSubmitOperator, SparkSubmitOperator, "_get_hook")
        _airflow.check_calls(SparkSubmitOperator, "execute", "_get_hook")
        _airflow.check_attributes(SparkSubmitOperator, self, "_hook", "_conn_id", "_java_class")
        refuse_deferral_in_client_mode(self.deferrable, self._deploy_mode)
        super().check_parameters()
        self.check_arguments({"application": self.application, "java_class": self._java_class, "conf": self.conf})
        _memory.check(self.memory_after_oom, self.memory_limit, _airflow.spark_hook_arguments(self))

    @classmethod
    def partial(cls, *, deferrable: bool | None = None, **options: Any) -> SubmitPartial:
        """Return the partial of Airflow, which knows only parameters of the constructor, with ``deferrable`` or its default."""
        made = super().partial(**options)
        defaults = options.get("default_args") or {}
        if deferrable is not None:
            made.kwargs["deferrable"] = deferrable
        elif "deferrable" in defaults:
            made.kwargs["default_args"] = {"deferrable": defaults["deferrable"]}
        return made

    @classmethod
    def check_arguments(cls, given: Mapping[str, Any]) -> None:
        refuse_deferral_in_client_mode(given.get("deferrable"), given.get("deploy_mode"))
        refuse_other_languages(given.get("application"), given.get("java_class"))
        refuse_own_confs(given.get("conf"))

    # -- before the launch -------------------------------------------------------------------------------------------

    def checkpoint_store(self) -> Store:
        hook = self._made_hook()
        return CheckpointStorageHook(self.checkpoint_conn_id, hook.master, self._conn_id).get_store()

    def _made_hook(self) -> CheckpointedSparkSubmitHook:
        """Return the hook, which is made once."""
        self._hook = hook = self.submission() or self._get_hook()
        return hook

    def submission(self) -> CheckpointedSparkSubmitHook | None:
        """Return the hook that was made last; the parent keeps it."""
        return self._hook if isinstance(self._hook, CheckpointedSparkSubmitHook) else None

    def prepare(self) -> None:
        refuse_no_application(self.application)
        hook = self._made_hook()
        if hook.master.startswith("k8s:") and (uri := self.checkpoint_store().uri).startswith("file:"):
            self._output.log([launch_messages.folder_on_kubernetes(uri)])
        self._defers = self._whether_to_defer(hook)
        if not self._defers:
            hook.check_tracking()
        if plan := self._memory_plan(hook):
            plan.check()

    def _whether_to_defer(self, hook: CheckpointedSparkSubmitHook) -> bool:
        """Return whether to free the worker while the driver runs. Say that a default does not hold in client mode."""
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

    def new_launch(self, context: Any) -> DriverLaunch:
        self._in_cluster = self._made_hook().deploy_mode == "cluster"
        return super().new_launch(context)

    def launch_parameters(self, context: Any, store: Store) -> LaunchParameters:
        return replace(super().launch_parameters(context, store), memory=self._memory_plan(self._made_hook()))

    def _memory_plan(self, hook: CheckpointedSparkSubmitHook) -> MemoryPlan | None:
        policy = memory_policy(self.memory_after_oom, self.memory_limit)
        if policy is None:
            return None
        arguments, in_cluster = _airflow.spark_hook_arguments(self), hook.deploy_mode == "cluster"
        return _memory.memory_plan(policy, arguments, hook.confs, master=hook.master, in_cluster=in_cluster)

    # -- the submit --------------------------------------------------------------------------------------------------

    def hand_over(self, launch: HandOver) -> None:
        self._handed = launch
        self._hook = None  # the parent makes a new one

    def _get_hook(self) -> CheckpointedSparkSubmitHook:
        """Return the hook; once a launch is planned, with the launch's settings. The parent calls this too, after it has
        added to ``conf``."""
        arguments = _airflow.spark_hook_arguments(self)
        if self._launch is None or self._handed is None:
            return CheckpointedSparkSubmitHook(**arguments, output=self._output)
        arguments["conf"] = self._handed.with_confs(self.conf)
        if self._launch.record is not None:
            _memory.raise_memory(arguments, self._launch.parameters.memory, self._launch.record.spec.memory)
        if self._defers:
            arguments["conf"] |= _cluster.WITHOUT_WAITING
            arguments["track_driver_via_k8s_api"] = True  # else the hook misses the driver's exit code
        keys = {} if self._in_cluster else s3_credentials.keys(self._launch.store)
        return CheckpointedSparkSubmitHook(
            **arguments, archive=self._handed.archive, environment=keys, output=self._output
        )

    def execute_resumable(self, context: Any) -> Any:
        """Do as the parent does, where the provider follows the driver. A task that is deferred only submits it."""
        return self.submit_job(context) if self._defers else super().execute_resumable(context)

    def exit_code(self, failure: BaseException | None) -> int | None:
        return hook.returncode if (hook := self.submission()) else None

    def goes_on_alone(self, launch: DriverLaunch) -> str | None:
        hook = self.submission()
        return _cluster.outlives_submit(hook, launch, self._output) if hook is not None else None

    def submitted(self, context: Any, launch: DriverLaunch) -> None:
        if self._defers and (hook := self.submission()):
            _cluster.submitted(hook, context, launch)

    def attached(self, ti: Any, launch: DriverLaunch, attempt: int | None) -> None:
        super().attached(ti, launch, attempt)
        if hook := self.submission():
            _cluster.remember_application(hook, launch, attempt)

    def end_followed(self, launch: DriverLaunch, attempt: AttemptRecord | None) -> dict[str, Any]:
        if hook := self.submission():  # in the process of a task that was deferred, it knows no application yet
            _cluster.remember_application(hook, launch, launch.state.last_epoch or None)
        return super().end_followed(launch, attempt)

    def application_in(self, context: Any, launch: DriverLaunch) -> tuple[str, str]:
        hook = self.submission()
        on_yarn = hook is not None and hook.in_yarn_cluster
        return (self._conn_id, _submitted_job.known(context, launch) or "") if on_yarn else ("", "")

    def ask_cluster(self, context: Any, launch: DriverLaunch) -> tuple[bool | None, str]:
        return _cluster.ask(self, context, launch)

    def kill_job(self) -> None:
        if self._hook is not None:  # a new hook would look up its connection, for which there is no time
            super().kill_job()
