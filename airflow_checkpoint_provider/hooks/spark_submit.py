"""The Spark provider's hook with additions for checkpointed jobs. Runs in Airflow (worker)."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.errors import InvalidConfig, NotInstalled
from airflow_checkpoint_provider.hooks import yarn
from airflow_checkpoint_provider.hooks.connections import find_connection
from airflow_checkpoint_provider.hooks.spark_confs import DEPLOY_MODE, PY_FILES, submitted_confs
from airflow_checkpoint_provider.hooks.spark_output import SparkOutput
from airflow_checkpoint_provider.protocol.handover import LAUNCH_VARIABLE, LINE_MARK
from airflow_checkpoint_provider.protocol.preflight import PREFLIGHT_VARIABLE
from airflow_checkpoint_provider.text import launch_messages

KUBERNETES = "airflow.providers.cncf.kubernetes"
OVERRIDDEN = ("_resolve_connection", "_build_spark_submit_command", "_process_spark_submit_log")
READ = ("_conn_id", "_conf", "_properties_file", "_env_vars", "_deploy_mode")  # while the parent's constructor runs
WAITS = "spark.yarn.submit.waitAppCompletion"
_YARN_FORGOT = re.compile(r"Application application_\w+ not found")
_YARN_SAID_ENDED = re.compile(r"Application report for application_\w+ \(state: (FINISHED|FAILED|KILLED)\)")


class CheckpointedSparkSubmitHook(SparkSubmitHook):
    """Takes the parameters of ``SparkSubmitHook``, ``archive``, ``environment`` and ``output``.

    The deploy mode may also stand in ``conf``, in ``properties_file`` or in ``spark-defaults.conf``: as for ``spark-submit``, it then
    counts if neither the parameter nor the connection has one.

    :param archive: a file that is added to the Python files, wherever they are configured. ``--py-files`` alone would replace a conf.

    :param environment: variables for the environment of ``spark-submit`` only. On YARN and Kubernetes the parent puts its
        ``env_vars`` into the command line, which every user of the host can read.
    :param output: folds Spark's output in the log.
    """

    def __init__(
        self,
        *args: Any,
        archive: str | None = None,
        environment: Mapping[str, str] | None = None,
        output: SparkOutput | None = None,
        **kwargs: Any,
    ) -> None:
        _airflow.check_overridden(CheckpointedSparkSubmitHook, SparkSubmitHook, *OVERRIDDEN)
        self._confs: dict[str, str] = {}
        super().__init__(*args, **kwargs)
        _airflow.check_attributes(SparkSubmitHook, self, "_connection", "_submit_sp", "_py_files", "_env")
        if archive is not None:
            self._py_files = ",".join(filter(None, (self._py_files or self._confs.get(PY_FILES), archive)))
        self._environment = dict(environment or {})
        self._output = output or SparkOutput(self.log.info)
        self.refusal: str | None = None
        """The reason for exit code 3 that a driver in client mode has printed."""
        self.forgotten = False
        """Whether YARN does not know the application, which its resource manager has accepted. Its driver may live for a while."""
        self._application_ended = False
        if self._is_yarn_cluster_mode:
            with contextlib.suppress(ValueError):  # now: when the task is killed, there is no time for a look-up
                self._get_yarn_rm_base_url()

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Return the connection. Raise ``ConnectionUnreadable`` if it cannot be read; the parent would assume YARN."""
        return _existing(find_connection(conn_id), conn_id)

    def _resolve_connection(self) -> dict[str, Any]:
        _airflow.check_attributes(SparkSubmitHook, self, *READ)
        connection = self._resolved()
        if "k8s" in connection["master"] and not _has_kubernetes():
            raise NotInstalled(
                f"Spark's master is {connection['master']}, and Airflow's Kubernetes provider is not installed here. Install it:"
                " pip install apache-airflow-providers-cncf-kubernetes"
            )
        own = {} if "k8s" in connection["master"] else self._env_vars or {}  # there they are for the driver's pod
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        self._confs = submitted_confs(self._conf, self._properties_file, environment)
        mode = self._confs.get(DEPLOY_MODE) or environment.get("DEPLOY_MODE")
        if mode and not connection["deploy_mode"]:
            self._deploy_mode = mode
            connection = self._resolved()  # which has more fields in cluster mode
            connection["deploy_mode"] = mode  # also without a connection
        return connection

    def _resolved(self) -> dict[str, Any]:
        """Resolve as the parent does, from a connection that was looked up before. The parent takes an error of its own look-up for a
        connection that does not exist, and a newer parent may look it up in another way: either would assume YARN.
        """
        asked, found = list[str](), find_connection(self._conn_id)

        def get_connection(conn_id: str) -> Connection:
            asked.append(conn_id)
            return _existing(found, conn_id)

        self.get_connection = get_connection  # type: ignore[method-assign]  # for the parent's method alone
        try:
            resolved: dict[str, Any] = super()._resolve_connection()
        finally:
            del self.get_connection
        _airflow.check_resolved(resolved, asked)
        return resolved

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submit as the parent does, and close the pipe that the parent leaves open.

        The child does not inherit the task's stdin: it would hide the task's death from its supervisor."""
        try:
            return super().submit(application, **{"stdin": subprocess.DEVNULL, **kwargs})
        finally:
            process = _airflow.spark_submit_process(self)
            if process is not None and process.stdout is not None:
                process.stdout.close()

    @property
    def master(self) -> str:
        return str(_airflow.spark_connection(self)["master"])

    @property
    def deploy_mode(self) -> str | None:
        """Return the configured deploy mode; None is Spark's default, ``client``."""
        mode: str | None = _airflow.spark_connection(self)["deploy_mode"]
        return mode

    @property
    def confs(self) -> dict[str, str]:
        """Return the confs that hold where the command line has no option."""
        return self._confs

    @property
    def pid(self) -> int | None:
        """Return the process id of ``spark-submit``, in client mode of the driver's JVM. None before ``submit``."""
        process = _airflow.spark_submit_process(self)
        return process.pid if process else None

    @property
    def returncode(self) -> int | None:
        """Return the exit code of ``spark-submit``, in client mode of the driver. None until it ended.

        A signal is 128 and its number, as in a shell: 137 after ``kill -9``. ``subprocess`` says -9, and ``spark-submit`` says
        137 if only the Python of the driver was killed.
        """
        process = _airflow.spark_submit_process(self)
        code = process.returncode if process else None
        return 128 - code if code is not None and code < 0 else code

    # -- YARN --------------------------------------------------------------------------------------------------------

    @property
    def in_yarn_cluster(self) -> bool:
        """Return whether the driver runs in a container of YARN."""
        return bool(self._is_yarn_cluster_mode)

    @property
    def yarn_application(self) -> str | None:
        """Return the id of the application in cluster mode, once ``spark-submit`` has printed it."""
        return self._yarn_application_id

    def adopt_yarn_application(self, application: str) -> None:
        """Let ``on_kill`` of the task kill an application that another process has submitted."""
        if self._is_yarn_cluster_mode and application:
            self._yarn_application_id = application

    def check_tracking(self) -> None:
        """Raise ``InvalidConfig`` if the task would not see its driver end on YARN. The parent says so only at the submit, or never."""
        try:
            self._validate_yarn_track_via_rm_api_config()
        except (ValueError, RuntimeError) as error:
            raise InvalidConfig(
                f"{error} Or leave `yarn_track_via_rm_api` out: then the task waits for `spark-submit`"
            ) from None
        waits = self._confs.get(WAITS, "").strip().lower()
        if not self._is_yarn_cluster_mode or not waits or (waits == "false") == self._yarn_track_via_rm_api:
            return
        wanted = "true" if waits == "false" else "false"
        raise InvalidConfig(
            f"{WAITS}={waits} does not go with yarn_track_via_rm_api={self._yarn_track_via_rm_api}: the task would not see how its driver"
            f" ends. Leave the conf out, or write {'yarn_track_via_rm_api=True' if wanted == 'true' else 'false'}"
        )

    def diagnostics(self) -> str:
        """Return what YARN says about the end of the application; empty if it cannot be asked."""
        application, asked = self._yarn_application_id, self._is_yarn_cluster_mode and self._yarn_rm_base_url
        return _airflow.yarn_diagnostics(self, application) if application and asked else ""

    def has_ended(self) -> bool:
        """Return whether YARN says that the application has ended."""
        return self.yarn_application is not None and not self.may_run_on()

    def may_run_on(self) -> bool:
        """Return whether an application on YARN may still run, though its ``spark-submit`` or its tracking has failed."""
        if not self._is_yarn_cluster_mode or self._application_ended:
            return False
        if self._yarn_application_id is None or self._yarn_rm_base_url is None:
            return True
        try:
            return self.query_yarn_application_status(self._yarn_application_id) not in ("SUCCEEDED", "FAILED")
        except RuntimeError as error:
            self.forgotten |= yarn.not_known(str(error))
            return True

    def kill_application(self) -> None:
        """Kill the application in cluster mode, if ``spark-submit`` has printed its id."""
        if self._yarn_application_id is not None:
            self._kill_yarn_application(self._yarn_application_id)

    def _kill_yarn_application(self, application_id: str) -> None:
        """Kill the application by the REST API of the resource manager, else by the command ``yarn``; the parent does not know the second
        way where the operator calls this.

        The command goes on in a session of its own: Airflow kills what is in that of the task five seconds later.
        """
        if self._yarn_rm_base_url is not None:
            super()._kill_yarn_application(application_id)
            return
        try:
            subprocess.Popen(
                ["yarn", "application", "-kill", application_id],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **(self._env or {})},
                start_new_session=True,
            )
        except OSError:
            self._output.log([launch_messages.not_killed(application_id)])

    # -- the process -------------------------------------------------------------------------------------------------

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command: list[str] = super()._build_spark_submit_command(application)
        # `submit` adds these to the process's environment. A driver elsewhere must not mark its lines: no process removes the marks.
        mark = {} if self.deploy_mode == "cluster" else {LINE_MARK: self._output.mark}
        # Variables that are left over in the worker would make a preflight of the job, or name another launch.
        left_over = {name: "" for name in (PREFLIGHT_VARIABLE, LAUNCH_VARIABLE) if name in os.environ}
        self._env = {**(self._env or {}), **self._environment, **mark, **left_over}
        return command

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        with contextlib.closing(self._output.fold(map(self._read, itr), self.log.info)) as lines:
            super()._process_spark_submit_log(lines)

    def _read(self, line: str) -> str:
        self.forgotten |= bool(_YARN_FORGOT.search(line))
        self._application_ended |= bool(_YARN_SAID_ENDED.search(line))
        self.refusal = launch_messages.refusal_in(line.partition(self._output.mark)[2].strip()) or self.refusal
        return line


def _existing(found: Connection | None, conn_id: str) -> Connection:
    if found is None:
        raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
    return found


def _has_kubernetes() -> bool:
    """Return whether Airflow's Kubernetes provider is installed. Without it, the parent's constructor ends with a NameError."""
    with contextlib.suppress(ImportError):
        return bool(importlib.import_module(KUBERNETES))
    return False
