"""Base of the tasks that change something: killed, they change nothing any more. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException


class Killable(BaseOperator):
    """Airflow lets a killed task go on for some seconds. So each step behind a wait asks whether it still may."""

    _killed = False

    def on_kill(self) -> None:
        self._killed = True

    def _stop_if_killed(self) -> None:
        if self._killed:
            raise AirflowException("this task was killed; it changes nothing any more")
