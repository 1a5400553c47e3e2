"""Users of the pages, whose permissions a test sets. Airflow's own answers are tested in a real API server. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.ui.access import Viewer

CONNECTION = "c"


class Reads(Viewer):
    """A user who may read the task instances of some DAGs. ``admin``: also the connection ``c`` and what has no owner."""

    def __init__(self, *dags: str, admin: bool = False) -> None:
        super().__init__(None)
        self.allowed, self.admin, self.asked = frozenset(dags), admin, list[str]()

    def reads_any(self) -> bool:
        return self.admin or bool(self.allowed)

    def _may_read(self, dag: str) -> bool:
        self.asked.append(dag)
        return dag in self.allowed

    def _may_change(self, connection: str) -> bool:
        return self.admin
