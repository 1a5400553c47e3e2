"""The connection to where checkpoints live. Runs in Airflow (worker, API server, command line)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.configuration import get_airflow_home
from airflow.sdk import BaseHook, Connection

from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.savepoint import open_savepoint
from airflow_checkpoint_provider.errors import CheckpointError, NotSupportedYet, StoreMisconfigured
from airflow_checkpoint_provider.hooks.connections import NoConnection, find_connection
from airflow_checkpoint_provider.hooks.s3_connection import FIELDS, is_s3, s3_settings
from airflow_checkpoint_provider.protocol.keys import History, Keys, SavepointPointer, pointer_of, safe_token
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.metadata import Seal, StateSnapshot
from airflow_checkpoint_provider.storage import Store, open_store, probe

SHARED = re.compile(r"/|(?!memory:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # the same place in every process and directory
_ADD = (
    'type \'checkpoint_storage\', extra {"root": "..."} with s3://bucket/prefix, or a folder that Airflow and all Spark drivers'
    " see under the same path."
)


class CheckpointStorageHook(BaseHook):
    """Where checkpoints live, by a connection of type ``checkpoint_storage``, or ``aws``, whose extra has ``root``.

    :param checkpoint_conn_id: the connection. If its name is not the default one, it must exist.
    :param master: Spark's master, if there is one. Without the connection, jobs of a local one use
        ``$AIRFLOW_HOME/checkpoints``; on a cluster that would be another folder on each host.
    """

    conn_name_attr = "checkpoint_conn_id"
    default_conn_name = "checkpoint_default"
    conn_type = "checkpoint_storage"
    hook_name = "Checkpoint Storage"

    def __init__(self, checkpoint_conn_id: str = default_conn_name, master: str | None = None) -> None:
        super().__init__()
        self.checkpoint_conn_id = checkpoint_conn_id
        self.master = master

    def root(self) -> str:
        """The root as a URI. Raises ``ConnectionUnreadable`` and ``StoreMisconfigured``."""
        return self.get_store().uri

    def get_store(self) -> Store:
        """The store at the root. Nothing is read or written yet. Raises as ``root`` does."""
        connected = self._connected()
        if connected is not None:
            return connected
        if self.master is not None and self.master.startswith("local"):
            return _folder()
        raise self._nowhere()

    def _nowhere(self) -> NoConnection:
        return NoConnection(
            f"There is no connection {self.checkpoint_conn_id!r}, and without one only a local Spark master has a place"
            f" for checkpoints (here: {self.master or 'no master'}). Add it: {_ADD}"
        )

    def get_store_of(self, job: str) -> Store:
        """For who knows no master: without the connection, the folder of jobs of a local one, if it holds this job."""
        connected = self._connected()
        if connected is not None:
            return connected
        folder = _folder()
        if safe_token(job) not in folder.folders("jobs"):
            raise self._nowhere()
        return folder

    def get_store_at(self, root: str) -> Store:
        """For who was given a pointer below ``root``: the connection, if there is one, must lead there."""
        there, connected = open_store(root), self._connected()
        if connected is not None and connected.uri != there.uri:
            raise StoreMisconfigured(
                f"the checkpoint lies below {there.uri}, but connection {self.checkpoint_conn_id!r} leads to {connected.uri}."
                " Give this task the checkpoint_conn_id of the job"
            )
        return connected or there

    def _connected(self) -> Store | None:
        """None if nobody made the default connection. One that a task or a person names must be there."""
        connection = find_connection(self.checkpoint_conn_id)
        if connection is None and self.checkpoint_conn_id != self.default_conn_name:
            raise NoConnection(
                f"There is no connection {self.checkpoint_conn_id!r}. Correct the name, or add it: {_ADD}", named=True
            )
        return self._store_of(connection) if connection is not None else None

    def get_store_beside(self) -> Store:
        """For who was given a savepoint, which may lie anywhere: what lies elsewhere is reached as this store is."""
        return self._connected() or _folder()

    def suspended(self, job: str) -> dict[str, str] | None:
        """Of a job with ``scope="job"`` that was stopped: ``{"at", "by", "savepoint"}``; ``by`` is the task that did so,
        ``dag_id.task_id``, or a person. None: it is not suspended, or never ran where this connection leads."""
        try:
            store = self.get_store_of(job)
        except NoConnection as error:
            if error.about.get("named"):
                raise
            return None
        state = Journal(store, Keys(History(job).prefix), By("hook", "", "")).catch_up()
        stops = [one for one in state.checkpoints if one.completed_at and kind_named(one.kind).suspends]
        if state.suspended is None or not stops:
            return None
        stop = max(stops, key=lambda one: one.completed_at)
        return {"at": stop.completed_at, "by": stop.owner or stop.origin, "savepoint": stop.target or ""}

    def describe(self, checkpoint: Mapping[str, Any] | str) -> dict[str, Any]:
        """What a checkpoint holds, without Spark: for audits, which read the files by any library.

        ``{"job", "scope", "id", "pointer", "sealed", "states": {uid: {"kind", "rows", "bytes", "files", "schema", "value"}}}``:
        ``files`` are URIs, ``schema`` is Spark's as JSON, None for a value. ``sealed`` is False for a gated one that is
        acknowledged and waits for its finalize. Raises ``NotPending`` before that, ``CheckpointNotFound``, ``Damaged``.
        A savepoint is read where it lies, which need not be below the connection's root.
        """
        from airflow_checkpoint_provider.hooks.watched import Watched, pointer_in

        where = pointer_of(pointer_in(checkpoint))
        if isinstance(where, SavepointPointer):
            savepoint = open_savepoint(where, self.get_store_beside())
            seal = savepoint.seal
            about = {"job": seal.job, "scope": seal.scope, "id": seal.id, "pointer": str(where)}
            return {**about, "sealed": True, "states": _states(seal, f"{savepoint.store.uri}/{savepoint.keys.prefix}")}
        watched = Watched(checkpoint, self.checkpoint_conn_id, "hook")
        coordinator = watched.coordinator
        seal, sealed = coordinator.contents(watched.look())
        uri = f"{coordinator.store.uri}/{coordinator.keys.prefix}"
        return {**watched.reference, "sealed": sealed, "states": _states(seal, uri)}

    def test_connection(self) -> tuple[bool, str]:
        """Writes, reads and deletes a scratch key: a store that lets two writers win is no place for checkpoints."""
        try:
            store = self.get_store()
            probe(store)
        except CheckpointError as error:
            return False, str(error)
        return True, f"{store.uri} can hold checkpoints: of two writers of one key exactly one wins."

    def _store_of(self, connection: Connection) -> Store:
        where = f"Connection {self.checkpoint_conn_id!r}"
        if connection.conn_type not in (self.conn_type, "aws"):
            raise StoreMisconfigured(f"{where} is of type {connection.conn_type!r}; make it {self.conn_type!r}.")
        extra = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
        root = extra.pop("root", None)
        if not isinstance(root, str) or not SHARED.match(root):
            raise StoreMisconfigured(
                f"{where} must say in its extra where checkpoints live, as an absolute path or a URI: "
                f'{{"root": "/shared/checkpoints"}} or {{"root": "s3://bucket/prefix"}}. It says: {root!r}.'
            )
        self._refuse_unknown(where, connection, extra, FIELDS if is_s3(root) else set())
        try:
            return open_store(root, s3=s3_settings(connection, extra))
        except StoreMisconfigured as error:
            raise StoreMisconfigured(f"{where}: {error.message}") from error

    def _refuse_unknown(self, where: str, connection: Connection, extra: dict[str, Any], known: set[str]) -> None:
        """An option that does nothing would be believed in."""
        fields = (name for name in ("host", "port", "schema", "login", "password") if getattr(connection, name))
        if unknown := {*extra, *fields} - known:
            knows = f"`root`, {', '.join(f'`{name}`' for name in sorted(known))}" if known else "only `root`"
            raise NotSupportedYet(
                f"{where} has {', '.join(sorted(unknown))}; with this root, this version knows {knows}. Take it out."
            )


def _folder() -> Store:
    """Where jobs of a local Spark master have their checkpoints without a connection."""
    return open_store(str(Path(get_airflow_home(), "checkpoints")))


def _states(seal: Seal, uri: str) -> dict[str, Any]:
    """Of a history, or a savepoint, at ``uri``."""
    return {uid: _described(one, uri) for uid, one in sorted(seal.states.items())}


def _described(state: StateSnapshot, uri: str) -> dict[str, Any]:
    return {
        "kind": state.kind, "rows": state.rows, "bytes": state.bytes,
        "files": [f"{uri}/{group.path}/{file.name}" for group in state.groups for file in group.files],
        "schema": json.loads(state.stage.schema) if state.stage else None, "value": state.value,
    }  # fmt: skip
