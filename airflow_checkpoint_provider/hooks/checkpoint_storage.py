"""The connection to the checkpoint storage. Runs in Airflow (each process, command line)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow.configuration import get_airflow_home
from airflow.sdk import BaseHook, Connection

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history
from airflow_checkpoint_provider.coordinator.outcomes import Awaited
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.coordinator.restore import open_pointer
from airflow_checkpoint_provider.errors import CheckpointError, NotSupportedYet, StoreMisconfigured
from airflow_checkpoint_provider.hooks import archive
from airflow_checkpoint_provider.hooks.connections import NoConnection, find_connection
from airflow_checkpoint_provider.hooks.history import HistoryReader, JobProgress, coordinator_at
from airflow_checkpoint_provider.hooks.references import CheckpointReference, incarnation_in, pointer_in
from airflow_checkpoint_provider.hooks.s3_connection import FIELDS, is_s3, s3_settings
from airflow_checkpoint_provider.location.foreign import loads, readable
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED
from airflow_checkpoint_provider.protocol.keys import JOBS, History, SavepointPointer, pointer_of, safe_token
from airflow_checkpoint_provider.protocol.metadata import Seal, StateSnapshot
from airflow_checkpoint_provider.protocol.wording import DEFAULT_CONNECTION
from airflow_checkpoint_provider.storage import Store, open_store, probe

DEEPEST_SCHEMA = 300  # lists and objects in each other: some 100 columns in columns
SHARED = re.compile(r"/|(?!memory:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # the same place in every process and directory
_ADD = (
    'type \'checkpoint_storage\', extra {"root": "..."} with s3://bucket/prefix, or a folder that Airflow and all Spark drivers'
    " see under the same path."
)


class CheckpointStorageHook(BaseHook):
    """Opens the checkpoint storage of a connection of type ``checkpoint_storage``, or ``aws`` with ``root`` in its extra.

    :param checkpoint_conn_id: the connection. If its name is not the default one, it must exist.
    :param master: Spark's master, if there is one. Without the connection, jobs of a local one use
        ``$AIRFLOW_HOME/checkpoints``; on a cluster that would be another folder on each host.
    :param spark_conn_id: the connection that names the master, for the error.
    """

    conn_name_attr = "checkpoint_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "checkpoint_storage"
    hook_name = "Checkpoint Storage"

    def __init__(
        self,
        checkpoint_conn_id: str = default_conn_name,
        master: str | None = None,
        spark_conn_id: str | None = None,
    ) -> None:
        super().__init__()
        self.checkpoint_conn_id = checkpoint_conn_id
        self.master, self.spark_conn_id = master, spark_conn_id
        self._name = f"Connection {checkpoint_conn_id!r}"

    def get_store(self) -> Store:
        """Return the store at the root. Nothing is read or written yet. Raise ``ConnectionUnreadable`` or ``StoreMisconfigured``."""
        connected = self._connected()
        if connected is not None:
            return connected
        if self.master is not None and self.master.startswith("local"):
            return _folder()
        raise self._nowhere()

    def _nowhere(self) -> NoConnection:
        """Return the error of a job that has no checkpoint storage. It also names the Spark connection, whose name may be wrong: without
        that connection Airflow's Spark provider assumes the master yarn.
        """
        asked = f"There is no connection {self.checkpoint_conn_id!r} (checkpoint_conn_id=)"
        if self.spark_conn_id is not None and find_connection(self.spark_conn_id) is None:
            return NoConnection(
                f"{asked}, and no connection {self.spark_conn_id!r} (conn_id=, of Spark; without it the master is {self.master}). If"
                f" Spark's master is local, correct conn_id=. Otherwise add both; that of the checkpoints: {_ADD}"
            )
        named = f" of connection {self.spark_conn_id!r}" if self.spark_conn_id is not None else ""
        return NoConnection(
            f"{asked}, and without it only a local Spark master has a place for checkpoints; the master{named} is"
            f" {self.master or 'not known'}. Add it: {_ADD}"
        )

    def get_store_of(self, job: str) -> Store:
        """Return the store of a job. Without a connection: the folder of a local Spark master, if that holds the job."""
        connected = self._connected()
        if connected is not None:
            return connected
        folder = _folder()
        if safe_token(job) not in folder.folders(JOBS):
            raise NoConnection(
                f"There is no connection {self.checkpoint_conn_id!r} (checkpoint_conn_id=), and {folder.uri}, where jobs with a local"
                f" Spark master write without it, has no job {job!r}. Start the job first, or add the connection: {_ADD}"
            )
        return folder

    def get_store_at(self, root: str) -> Store:
        """Return the store at ``root``, the root of a pointer. The connection, if there is one, must lead there."""
        there, connected = open_store(root), self._connected()
        if connected is not None and connected.uri != there.uri:
            raise StoreMisconfigured(
                f"the checkpoint lies below {there.uri}, but connection {self.checkpoint_conn_id!r} leads to {connected.uri}."
                " Give this task the checkpoint_conn_id of the job"
            )
        return connected or there

    def _connected(self) -> Store | None:
        """Return None if the default connection does not exist. A connection that somebody names must exist."""
        connection = find_connection(self.checkpoint_conn_id)
        if connection is None and self.checkpoint_conn_id != self.default_conn_name:
            raise NoConnection(
                f"There is no connection {self.checkpoint_conn_id!r}. Correct the name, or add it: {_ADD}", named=True
            )
        return self._store_of(connection) if connection is not None else None

    def publish_archive(self) -> str | None:
        """Write the driver's part of this package where ``code`` of the connection leads, if it is not there. Return its URI; None without
        ``code``. Raise ``StoreMisconfigured`` if other people could write there.
        """
        connection = find_connection(self.checkpoint_conn_id)
        extra = connection.extra_dejson if connection is not None else {}
        code = extra.get("code")
        if connection is None or code in (None, ""):
            return None
        if not isinstance(code, str) or not SHARED.match(code):
            raise StoreMisconfigured(
                f"{self._name}: code is where this package lies for Spark drivers, an absolute path or a URI:"
                f' "s3a://bucket/code". It says: {code!r}'
            )
        try:
            return archive.publish(code, s3_settings(connection, extra), self._store_of(connection).uri)
        except StoreMisconfigured as error:
            raise StoreMisconfigured(f"{self._name}: {error.message}") from error

    def get_store_beside(self) -> Store:
        """Return the store whose credentials reach a savepoint, which may lie elsewhere."""
        return self._connected() or _folder()

    def get_checkpoint(self, checkpoint: object, owner: str, awaited: Awaited = Awaited.COMPLETED) -> CheckpointRequest:
        """Return the request of the checkpoint of an XCom or a pointer. Its entries name ``owner``. Nothing is read yet.

        Raise ``InvalidConfig`` or ``InvalidName`` if ``checkpoint`` names none.
        """
        reference = CheckpointReference.of(checkpoint)

        def connect() -> Coordinator:
            root = reference.root
            store = self.get_store_at(root) if root is not None else self.get_store_of(reference.job)
            return coordinator_at(store, reference.prefix, owner)

        return CheckpointRequest.of(
            connect, reference.id, folder=reference.target, awaited=awaited, incarnation=reference.incarnation
        )

    def get_progress(self, history: History, after: int | None, owner: str) -> JobProgress:
        """Return a reader of the checkpoints that a job completes: above the id ``after``, or since its newest launch."""
        return JobProgress(history, after, self._connect(history, owner))

    def get_history(self, job: str, owner: str, item: str | None = None) -> HistoryReader:
        """Return a reader of the history that all runs of a job share, or all runs of one item of it."""
        history = History(job, item=item)
        return HistoryReader(history, self._connect(history, owner))

    def _connect(self, history: History, owner: str) -> Callable[[], Coordinator]:
        return lambda: coordinator_at(self.get_store_of(history.job), history.prefix, owner)

    def suspended(self, job: str, item: str | None = None) -> dict[str, str] | None:
        """Return who stopped a job with ``scope="job"``, or one item of it: ``{"at", "by", "savepoint"}``.

        ``by`` is a task (``dag_id.task_id``) or a person. Return None if the job is not suspended, or never ran where this
        connection leads.
        """
        try:
            store = self.get_store_of(job)
        except NoConnection as error:
            if error.about.get("named"):
                raise
            return None
        state = open_history(store, History(job, item=item).prefix).journal.catch_up()
        if state.suspended is None or not state.stops:
            return None
        stop = max(state.stops, key=lambda checkpoint: checkpoint.completed_at)
        return {
            "at": stop.completed_at,
            "by": stop.request.owner or stop.request.origin,
            "savepoint": stop.target or "",
        }

    def describe(self, checkpoint: Mapping[str, Any] | str) -> dict[str, Any]:
        """Describe the content of a checkpoint, without Spark. An audit can then read the files with any library.

        ``{"job", "scope", "id", "pointer", "incarnation", "sealed", "states": {uid: {"kind", "rows", "bytes", "files", "schema", "value"}}}``:
        ``files`` are URIs, ``schema`` is Spark's as JSON, None for a value. A stage in parts also has ``"parts": {"values", "done"}``: the
        values of all parts, and how many of them are stored. ``sealed`` is False for a gated checkpoint that is
        acknowledged and waits for its finalize. The digest, and the names, sizes and footers of the files, are compared first.
        Raises ``NotPending`` if it is not acknowledged yet, ``CheckpointNotFound`` if it was aborted or deleted, also with its history, and
        ``Damaged``. A
        savepoint may lie outside the connection's root.
        """
        pointer = pointer_of(pointer_in(checkpoint))
        savepoint = isinstance(pointer, SavepointPointer)
        home = self.get_store_beside() if savepoint else self.get_store_at(pointer.root)
        opened = open_pointer(pointer, home, pending=True, incarnation=incarnation_in(checkpoint))
        return {
            "job": opened.seal.job,
            "scope": opened.seal.scope,
            **({} if opened.seal.item is None else {"item": opened.seal.item}),
            "id": opened.seal.id,
            "pointer": opened.checkpoint.target or str(pointer),
            "incarnation": opened.seal.inc,
            "sealed": opened.checkpoint.status == RETAINED,
            "states": _describe_states(opened.seal, f"{opened.store.uri}/{opened.keys.prefix}"),
        }

    def test_connection(self) -> tuple[bool, str]:
        """Write, read and delete a scratch key. A store that lets two writers win cannot hold checkpoints."""
        self._name = "This connection"  # Airflow tests it under a random name
        try:
            store = self.get_store()
            probe(store)
        except CheckpointError as error:
            return False, str(error)
        return True, f"{store.uri} can hold checkpoints: of two writers of one key exactly one wins."

    def _store_of(self, connection: Connection) -> Store:
        where = self._name
        if connection.conn_type not in (self.conn_type, "aws"):
            raise StoreMisconfigured(f"{where} is of type {connection.conn_type!r}; make it {self.conn_type!r}.")
        extra = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
        root = extra.pop("root", None)
        if not isinstance(root, str) or not SHARED.match(root):
            raise StoreMisconfigured(
                f"{where} must say in its extra where checkpoints live, as an absolute path or a URI: "
                f'{{"root": "/shared/checkpoints"}} or {{"root": "s3://bucket/prefix"}}. It says: {root!r}.'
            )
        extra.pop("code", None)
        roots = extra.pop("savepoint_roots", None)
        if roots is not None and not _are_roots(roots):
            raise StoreMisconfigured(
                f"{where}: savepoint_roots is the list of the places where savepoints may lie besides the root, absolute paths or"
                f' URIs: ["s3://bucket/savepoints"]. It says: {roots!r}.'
            )
        self._refuse_unknown(where, connection, extra, FIELDS if is_s3(root) else set())
        try:
            return open_store(root, s3=s3_settings(connection, extra), create_root=False, savepoint_roots=roots)
        except StoreMisconfigured as error:
            raise StoreMisconfigured(f"{where}: {error.message}") from error

    def _refuse_unknown(self, where: str, connection: Connection, extra: dict[str, Any], known: set[str]) -> None:
        """Refuse options that have no effect: somebody would rely on them."""
        fields = (name for name in ("host", "port", "schema", "login", "password") if getattr(connection, name))
        if unknown := {*extra, *fields} - known:
            knows = ", ".join(f"`{name}`" for name in ("root", "savepoint_roots", "code", *sorted(known)))
            raise NotSupportedYet(
                f"{where} has {', '.join(sorted(unknown))}; with this root, this version knows {knows}. Remove the others."
            )


def _are_roots(roots: object) -> bool:
    return isinstance(roots, list) and all(isinstance(root, str) and SHARED.match(root) for root in roots)


def _folder() -> Store:
    """Return the store of jobs of a local Spark master that have no connection."""
    return open_store(str(Path(get_airflow_home(), "checkpoints")))


def _describe_states(seal: Seal, uri: str) -> dict[str, Any]:
    """Describe the states of a history, or a savepoint, at ``uri``."""
    described = {}
    for uid, state in sorted(seal.states.items()):
        with readable(f"the schema of state '{uid}' below {uri}", "this package"):
            described[uid] = _describe_state(state, uri)
    return described


def _describe_state(state: StateSnapshot, uri: str) -> dict[str, Any]:
    schema = state.stage.schema if state.stage else state.frame.schemas[-1] if state.frame else None
    return {
        "kind": state.kind,
        "rows": state.rows,
        "bytes": state.bytes,
        "files": [f"{uri}/{file_set.path}/{file.name}" for file_set in state.file_sets for file in file_set.files],
        "schema": None if schema is None else loads(schema, DEEPEST_SCHEMA),
        "value": state.value,
        **({"parts": {"values": list(state.parts.values), "done": len(state.parts.done)}} if state.parts else {}),
    }
