"""Histories that the runs of several DAGs share. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.ui.access import MOST_DAGS
from tests.support.recorded import Recorded

MANY = [f"dag{number}" for number in range(MOST_DAGS)]


class SharedHistory(Recorded):
    """The history of a job whose runs belong to several DAGs, which have the names of the runs. ``script``: it had no DAG."""

    def __init__(self) -> None:
        super().__init__(scope="")

    def token(self, run: str = "", generation: int = 0) -> Token:
        return replace(super().token(run, generation), dag="" if run == "script" else run)


def shared_by(dags: Sequence[str]) -> SharedHistory:
    """Return a history with a launch of each DAG."""
    recorded = SharedHistory()
    for number, dag in enumerate(dags):
        recorded.started(f"22:{number % 60:02}:20", run=dag)
        recorded.ended(f"22:{number % 60:02}:40")
    return recorded
