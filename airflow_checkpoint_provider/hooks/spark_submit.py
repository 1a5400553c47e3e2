"""The Spark provider's hook, with what a checkpointed job needs from its process. Runs in Airflow (worker)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.hooks.connections import find_connection
from airflow_checkpoint_provider.text import messages


class CheckpointedSparkSubmitHook(SparkSubmitHook):
    """Takes the parameters of ``SparkSubmitHook`` and ``environment``.

    :param environment: added to the environment of ``spark-submit``, and only there. The parent's ``env_vars`` stand in
        the command line on YARN and Kubernetes, for every user of the host to read.
    """

    def __init__(self, *args: Any, environment: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(environment or {})
        self.refusal: str | None = None
        """What a driver in client mode printed as the reason for its exit code 3."""

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """One that cannot be read raises ``ConnectionUnreadable``; the parent would take it for YARN."""
        connection = find_connection(conn_id)
        if connection is None:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return connection

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """As the parent's, which leaves the pipe open that it has read to its end. A child that kept the task's stdin would
        hide the task's death from its supervisor."""
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
        """As configured; None is Spark's default, ``client``."""
        mode: str | None = _airflow.spark_connection(self)["deploy_mode"]
        return mode

    @property
    def pid(self) -> int | None:
        """The process id of ``spark-submit``, in client mode the driver's JVM. None before ``submit``."""
        process = _airflow.spark_submit_process(self)
        return process.pid if process else None

    @property
    def returncode(self) -> int | None:
        """Of ``spark-submit``, in client mode the driver's; negative: ended by a signal. None until it ended."""
        process = _airflow.spark_submit_process(self)
        return process.returncode if process else None

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command: list[str] = super()._build_spark_submit_command(application)
        self._env = {**(self._env or {}), **self._environment}  # what `submit` adds to the process's environment
        return command

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._heard(line) for line in itr)

    def _heard(self, line: str) -> str:
        self.refusal = messages.refusal_in(line.strip()) or self.refusal
        return line
