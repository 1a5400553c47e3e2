"""Users of the pages, whose permissions a test sets. Airflow's own answers are tested in a real API server. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.ui.access import Viewer

CONNECTION = "c"


class Reads(Viewer):
    """A user who may read the task instances of some DAGs. ``admin``: also the connection ``c`` and what has no owner."""

    def __init__(self, *dags: str, admin: bool = False) -> None:
        super().__init__(None)
        self.allowed, self.asked = frozenset(dags), list[str]()
        self._connections = {CONNECTION: admin}

    def _may_read(self, dag: str) -> bool:
        self.asked.append(dag)
        return dag in self.allowed
