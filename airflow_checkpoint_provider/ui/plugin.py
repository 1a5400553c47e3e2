"""The plugin that shows checkpoints in Airflow's pages. Runs in Airflow (all processes), so it imports almost nothing."""

from __future__ import annotations

import functools
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/checkpoints"
VIEW = "checkpoints"  # the part of the UI's address that shows the list of jobs, and any page below PREFIX


@functools.cache
def application() -> Any:
    """Return the pages as an ASGI application, which is built once in a process."""
    from airflow_checkpoint_provider.ui.app import build

    return build()


class LazyApplication:
    """An ASGI application that is built at its first request. Each task imports this plugin, and none serves a page."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await application()(scope, receive, send)


class CheckpointsPlugin(AirflowPlugin):
    """A tab on each task instance, an entry in the navigation, and the pages that both show.

    Their addresses have no slash at the beginning: the UI's base address comes before them.
    """

    name = "checkpoints"
    fastapi_apps = [{"app": LazyApplication(), "url_prefix": PREFIX, "name": "Checkpoints"}]  # noqa: RUF012 - as Airflow declares it
    external_views = [  # noqa: RUF012 - as Airflow declares it
        {
            "name": "Checkpoints",
            "href": "checkpoints/jobs",
            "destination": "nav",
            "category": "browse",
            "url_route": VIEW,
        },
        {
            "name": "Checkpoints",
            "href": "checkpoints/task?dag={DAG_ID}&run={RUN_ID}&task={TASK_ID}&map_index={MAP_INDEX}",
            "destination": "task_instance",
            "url_route": "task-checkpoints",
        },
    ]
