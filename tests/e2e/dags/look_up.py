"""A task that looks a connection up when told to, and writes down what it learned. Runs in Airflow (worker)."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, task

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.hooks.connections import find_connection
from tests.support.waiting import wait_until

with DAG("look_up", schedule=None, params={"conn_id": "", "folder": ""}):

    @task
    def look(conn_id: str, path: str) -> None:
        folder = Path(path)
        (folder / "ready").touch()
        wait_until((folder / "go").exists, 300, "nobody said go")
        try:
            found = find_connection(conn_id)
            answer = f"found {found.host}" if found else "absent"
        except CheckpointError as error:
            answer = error.code
        (folder / "answer.new").write_text(answer)
        (folder / "answer.new").rename(folder / "answer")

    look("{{ params.conn_id }}", "{{ params.folder }}")
