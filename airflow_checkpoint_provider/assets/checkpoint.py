"""The asset of a job's checkpoints, and the checkpoint for which a run was started. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from airflow.sdk import Asset, AssetWatcher

from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidConfig
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.history import HistoryReader, readable
from airflow_checkpoint_provider.hooks.references import pointer_in
from airflow_checkpoint_provider.protocol.keys import Pointer, check_item, check_job_id, pointer_of
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
        a checkpoint whose rows readers of its sinks see. With "checkpoint" or "savepoint" beside it, such a checkpoint has two events: one
        when it is completed, one when its rows are committed.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``. Another one than the default is a part of the asset's name.
    :param item: of a mapped job: the item.
    """
    check_job_id(job_id)
    of_item = {} if item is None else {"item": check_item(item)}
    wanted = [kind for kind in KINDS if kind in kinds]
    if isinstance(kinds, str) or not wanted or set(kinds) - set(KINDS):
        raise InvalidConfig(f'kinds={kinds!r}: write ("savepoint",), ("checkpoint",), ("commit",), or several')
    about: dict[str, Any] = {"job": job_id, "kinds": wanted, "checkpoint_conn_id": checkpoint_conn_id, **of_item}
    # Airflow knows an asset by its name alone: all that distinguishes two of them is in it.
    name = f"{' and '.join(f'{kind}s' for kind in wanted)} of {job_id}"
    if checkpoint_conn_id != CheckpointStorageHook.default_conn_name:
        name += f", connection {checkpoint_conn_id}"
    if of_item:
        name += f", item {item}"
    trigger = CompletedCheckpointTrigger(**about, poll_interval=EVERY)
    return Asset(name, extra=about, watchers=[AssetWatcher(name=name, trigger=trigger)])


def triggering_checkpoint(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the newest completed checkpoint of the ``checkpoint_asset`` that started this run, as the journal has it now.

    It is the output of a task that triggers a checkpoint, with ``kind`` and ``bytes``: the event's own checkpoint, or a newer one. If the
    asset has several kinds, the newer one may be of another kind than the event.
    Raise ``InvalidConfig`` if the run has no such event, or of several jobs, or if the history that is read is not that of the events.
    Raise ``CheckpointNotFound`` if all were deleted.
    """
    events = [event for events in context["triggering_asset_events"].values() for event in events]
    events = [event for event in events if "checkpoint_conn_id" in event.asset.extra]
    watched = {json.dumps(event.asset.extra, sort_keys=True) for event in events}
    if len(watched) != 1:
        raise InvalidConfig(
            f"this run has events of {len(watched)} assets of checkpoint_asset(), and one is needed. A run that a person started has none:"
            ' let the job take a savepoint instead. With several assets, read context["triggering_asset_events"]'
        )
    about = json.loads(watched.pop())
    reader = CheckpointStorageHook(about["checkpoint_conn_id"]).get_history(about["job"], "asset", about.get("item"))
    found = readable(reader.poll(), about["kinds"])
    for event in events:
        payload = event.extra.get("payload")
        if isinstance(payload, Mapping):  # else a person has made the event, which names no checkpoint
            _refuse_other_history(payload, reader, about["checkpoint_conn_id"])
    if not found:
        raise CheckpointNotFound(
            f"job {about['job']!r} has no {' or '.join(about['kinds'])} any more: it was deleted after the event. Keep more of them:"
            " retention="
        )
    return reader.event(*found[-1])


def _refuse_other_history(payload: Mapping[str, Any], reader: HistoryReader, connection: str) -> None:
    """Raise ``InvalidConfig`` if the checkpoint of an event does not belong to the history that is read."""
    history, coordinator = reader.history, reader.coordinator
    target, own = pointer_in(payload), coordinator.state.checkpoint(payload.get("id"))
    pointer = pointer_of(target)
    same = (payload.get("job"), payload.get("item")) == (history.job, history.item)
    if isinstance(pointer, Pointer):
        same = same and pointer.root == coordinator.store.uri
    elif own:
        same = same and own.target == target
    if not same:
        raise InvalidConfig(
            f"an event of this run is of {target}, which does not belong to the history that connection {connection!r} leads"
            f" to: {coordinator.store.uri}/{history.prefix}. If the connection leads elsewhere since, let the job take another savepoint"
        )
