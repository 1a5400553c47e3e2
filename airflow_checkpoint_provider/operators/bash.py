"""``BashOperator`` whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from airflow.providers.standard.operators.bash import BashOperator

from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin


class CheckpointedBashOperator(CheckpointedJobMixin, BashOperator):
    """Runs a command that is a Spark driver, or starts one. Its retries and clears continue from the latest completed checkpoint.

    Takes all parameters of ``BashOperator``, and those of ``CheckpointedJobMixin``. The driver finds its launch in an environment variable.
    The command says ``--py-files "$CHECKPOINT_ARCHIVE"``, or the driver has this package, with ``archive=None``.
    """

    from_this_host = True

    def hand_over(self, launch: HandOver) -> None:
        self.append_env = self.append_env or self.env is None
        self.env = {**(self.env or {}), **launch.variables}
