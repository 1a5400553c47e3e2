"""The refusal of a job in the process of an Airflow task, such as ``@task.pyspark``. Runs in the Spark driver.

Such a driver dies with its task, gets no launch, and would take the name of Airflow's own command for its job. It imports nothing of
Airflow: whether Airflow executes a task in this process is asked of the Airflow that is loaded there. Airflow's environment variables say
less: a script that a task starts as another process inherits them, and may run on its own.
"""

from __future__ import annotations

import sys

from airflow_checkpoint_provider.errors import WrongUse

SDK = "airflow.sdk"


def refuse_in_task() -> None:
    """Raise ``WrongUse`` if Airflow executes a task in this process."""
    task = _current_task()
    if task is not None:
        raise WrongUse(
            f"CheckpointedJob was opened in the process of the Airflow task {task!r}, whose driver would die with each try. @task.pyspark and"
            " @task cannot run a checkpointed job. Put the script into a file of its own, and submit it by"
            " CheckpointedSparkSubmitOperator(application=...)"
        )


def _current_task() -> str | None:
    """Return the task that Airflow executes in this process; None if there is none. A part that has changed counts as none."""
    sdk = sys.modules.get(SDK)
    try:
        return str(sdk.get_current_context()["ti"].task_id) if sdk else None
    except Exception:  # noqa: BLE001 - RuntimeError: no task is executed; other errors: Airflow has changed
        return None
