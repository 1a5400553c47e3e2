"""The link from a task to the checkpoints of its job, in Airflow's pages. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperator, BaseOperatorLink

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.hooks.references import LINK_KEY, HistoryReference


class CheckpointsLink(BaseOperatorLink):
    """Leads to the page of the job, inside of Airflow's own page.

    Airflow asks for it in the task's process, after each of its runs.
    """

    name = "Checkpoints"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        try:
            reference: HistoryReference | None = operator.reference(ti_key)
        except CheckpointError:  # the task itself fails with this error
            reference = None
        return _address(reference) if reference else ""


LINK = CheckpointsLink()


class LinkedTask(BaseOperator):
    """Base of the tasks with this link, which is there as soon as they run."""

    operator_extra_links: Collection[BaseOperatorLink] = (LINK,)

    def reference(self, ti: Any) -> HistoryReference | None:
        """Return the history that this task works on; None if its parameters do not say it."""
        raise NotImplementedError

    def pre_execute(self, context: Any) -> None:
        super().pre_execute(context)
        if link := LINK.get_link(self, ti_key=context["ti"]):
            self._push(context["ti"], link)

    def _push(self, ti: Any, link: str) -> None:
        """Store the link. Log a failure: the missing link must not fail the task."""
        try:
            _airflow.push_link(ti, LINK_KEY, link)
        except Exception as error:  # noqa: BLE001 - Airflow raises any error of its client
            self.log.warning("The link to the checkpoints could not be written: %s", error)


def _address(reference: HistoryReference) -> str:
    """Return the address of a job's page. It has no slash at its beginning: Airflow's own address comes before it.

    The UI shows the page at the path after ``plugin/checkpoints``; that path begins where the server's paths begin.
    """
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.strip("/")
    return "/".join(filter(None, ("plugin/checkpoints", base, f"checkpoints/job?{reference.query}")))
