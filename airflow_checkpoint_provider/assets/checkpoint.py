"""The asset of a job's checkpoints, and the checkpoint for which a run was started. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from airflow.sdk import Asset, AssetWatcher

from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidConfig
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.history import readable
from airflow_checkpoint_provider.protocol.keys import check_item, check_job_id
from airflow_checkpoint_provider.triggers.assets import CompletedCheckpointTrigger

KINDS = ("checkpoint", "savepoint", "commit")
EVERY = 5.0  # seconds between two polls of the journal


def checkpoint_asset(
    job_id: str,
    kinds: Collection[str] = ("savepoint",),
    checkpoint_conn_id: str = CheckpointStorageHook.default_conn_name,
    item: str | None = None,
) -> Asset:
    """Return the asset of a job with ``scope="job"``, or of one item of it, for ``schedule=`` of a DAG. A triggerer watches the journal of the job.

    Each completed checkpoint is an event. Its ``extra["payload"]`` is the output of a task that triggers a checkpoint, with ``kind``
    and ``bytes``. Two events that come close together may start one run: ``triggering_checkpoint`` returns the newest.

    :param job_id: the id of the job.
    :param kinds: "savepoint", "checkpoint", "commit". A policy deletes checkpoints, perhaps before your DAG has read them. A "commit" is
        a checkpoint whose rows readers of its sinks see.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``.
    :param item: of a mapped job: the item.
    """
    check_job_id(job_id)
    of_item = {} if item is None else {"item": check_item(item)}
    wanted = [kind for kind in KINDS if kind in kinds]
    if isinstance(kinds, str) or not wanted or set(kinds) - set(KINDS):
        raise InvalidConfig(f'kinds={kinds!r}: write ("savepoint",), ("checkpoint",), ("commit",), or several')
    about: dict[str, Any] = {"job": job_id, "kinds": wanted, "checkpoint_conn_id": checkpoint_conn_id, **of_item}
    name = f"{' and '.join(f'{kind}s' for kind in wanted)} of {job_id}" + (f", item {item}" if of_item else "")
    trigger = CompletedCheckpointTrigger(**about, poll_interval=EVERY)
    return Asset(name, extra=about, watchers=[AssetWatcher(name=name, trigger=trigger)])


def triggering_checkpoint(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the newest completed checkpoint of the ``checkpoint_asset`` that started this run, as the journal has it now.

    It is the output of a task that triggers a checkpoint, with ``kind`` and ``bytes``: the event's own checkpoint, or a newer one.
    Raise ``InvalidConfig`` if the run has no such event, or of several jobs. Raise ``CheckpointNotFound`` if all were deleted.
    """
    assets = [event.asset for events in context["triggering_asset_events"].values() for event in events]
    watched = {json.dumps(asset.extra, sort_keys=True) for asset in assets if "checkpoint_conn_id" in asset.extra}
    if len(watched) != 1:
        raise InvalidConfig(
            f"this run has events of {len(watched)} assets of checkpoint_asset(), and one is needed. A run that a person started has none:"
            ' let the job take a savepoint instead. With several assets, read context["triggering_asset_events"]'
        )
    about = json.loads(watched.pop())
    reader = CheckpointStorageHook(about["checkpoint_conn_id"]).get_history(about["job"], "asset", about.get("item"))
    found = readable(reader.poll(), about["kinds"])
    if not found:
        raise CheckpointNotFound(
            f"job {about['job']!r} has no {' or '.join(about['kinds'])} any more: it was deleted after the event. Keep more of them:"
            " retention="
        )
    return reader.event(found[-1])
