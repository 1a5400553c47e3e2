"""The look-up of a connection, which distinguishes "does not exist" from "cannot be read". Runs in Airflow (all processes)."""

from __future__ import annotations

import json
import logging
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.errors import CheckpointError, StoreMisconfigured
from airflow_checkpoint_provider.storage import Store

log = logging.getLogger(__name__)

SELDOM = 30.0  # seconds for which the answer to a question is good whose answer seldom changes: where a connection leads, which jobs there are


class ConnectionUnreadable(CheckpointError, ConnectionError, code="CKP640"):
    """Airflow could not tell whether the connection exists.

    The API server, the database or a secrets backend did not answer.
    """


class NoConnection(StoreMisconfigured, code="CKP641"):
    """The connection does not exist, so the checkpoint location is unknown.

    ``about`` has ``named`` if the connection was named explicitly: then there is no default location.
    """


class ConnectionMalformed(StoreMisconfigured, code="CKP643"):
    """What is written for the connection is not written as Airflow reads it."""


class ConnectionNotNamed(CheckpointError, LookupError, code="CKP642"):
    """The pages do not open a connection that no administrator has named: see `[checkpoints] connections`."""


_OF_TEAM = (
    "Pages and commands ask for no team. Store the connection in Airflow's database, with its team, where they find it; or give it to them"
    " under a name of its own, without a team."
)
_SILENT = "Check that API server, database and secrets backends answer, then try again."
_UNTOLD = " The text of the error may hold a secret, so only the log of level DEBUG has it."
_CHANGED = (
    "If the error names a part of Airflow, this Airflow was not tried with this package, and its own look-up gives one answer for a connection"
    " that is absent and for one that it cannot read. Add the connection if it is absent, or install a newer version of this package."
)


def find_connection(conn_id: str) -> Connection | None:
    """Return the connection, or None if it does not exist. Raise ``ConnectionUnreadable`` if that is unknown, and ``ConnectionMalformed`` if
    no other try can read it.

    ``BaseHook.get_connection`` says "isn't defined" in all these cases. If the API server is down, this takes about 10 s, because
    Airflow retries.
    """
    try:
        found = _airflow.find_connection(conn_id)
    except Exception as error:  # noqa: BLE001 - a secrets backend raises any error of its client
        # Not chained: a traceback would show the text of the error, which may quote a secret
        raise _explained(conn_id, error) from None
    if found is not None and not _is_object(found.extra):
        raise _malformed(conn_id, "its extra is no JSON object")
    return found


def _explained(conn_id: str, error: Exception) -> CheckpointError:
    if _airflow.is_misread(error):
        return _malformed(conn_id, type(error).__name__)
    log.debug("Connection %r cannot be read", conn_id, exc_info=error)
    other, changed = isinstance(error, _airflow.OtherTeam), isinstance(error, _airflow.CHANGED)
    text = f": {error}" if other or changed or isinstance(error, AirflowRuntimeError) else ""
    advice = _OF_TEAM if other else _CHANGED if changed else _SILENT
    return ConnectionUnreadable(
        f"Airflow could not say whether connection {conn_id!r} exists ({type(error).__name__}{text})."
        f" Nothing was assumed. {advice}{'' if text else _UNTOLD}",
        conn_id=conn_id,
    )


def _malformed(conn_id: str, why: str) -> ConnectionMalformed:
    return ConnectionMalformed(
        f"Airflow cannot read what is written for connection {conn_id!r} ({why}). It is not shown, because it may hold a secret."
        ' Write the connection as JSON, {"conn_type": "...", "password": "...", "extra": {...}}, whose extra is an object, or percent-encode'
        " each part of its URI: / is %2F, @ is %40. A file of connections is read as a whole, so the fault may be in another one",
        conn_id=conn_id,
    )


def _is_object(extra: str | None) -> bool:
    """Return whether the extra of a connection is empty or a JSON object. Airflow itself passes over what is no JSON, in tasks."""
    try:
        return not extra or isinstance(json.loads(extra), dict)
    except (ValueError, TypeError, RecursionError):
        return False


def where(store: Store) -> tuple[str, Any]:
    """Return the values by which the stores of two look-ups are the same."""
    return store.uri, getattr(store, "settings", None)
