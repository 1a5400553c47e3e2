"""The addresses to which the pages lead outside of themselves: Airflow's pages, and Spark's. Runs in Airflow (API server); no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.protocol.launch_records import Launch


@dataclass(frozen=True)
class Link:
    """A link. Its address is relative to the pages below ``/checkpoints``, or is one of another server (``elsewhere``)."""

    text: str
    address: str
    elsewhere: bool = False


def of_task(launch: Launch | None) -> Sequence[Link]:
    """Return the ways to the task of a launch, which shows its log, and to its DAG run; none for a script without Airflow."""
    if launch is None or not launch.spec.token.dag:
        return ()
    token = launch.spec.token
    dag_run = f"../dags/{quote(token.dag, safe='')}/runs/{quote(token.run, safe='')}"
    index = "" if launch.map_index is None else f"/mapped/{launch.map_index}"
    task = f"{dag_run}/tasks/{quote(token.task, safe='')}{index}?try_number={launch.latest_try}"
    return (Link(f"task and log of try {launch.latest_try}", task), Link("DAG run", dag_run))


def of_spark(beat: Beat) -> Sequence[Link]:
    """Return the way to Spark's own pages, if the driver has named an address that a browser can open."""
    if not beat.spark_ui.startswith(("http://", "https://")):
        return ()
    return (Link("Spark's pages", beat.spark_ui, elsewhere=True),)
