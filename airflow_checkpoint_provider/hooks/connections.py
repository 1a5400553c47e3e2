"""The look-up of a connection, which distinguishes "does not exist" from "cannot be read". Runs in Airflow (all processes)."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Connection

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.errors import CheckpointError, StoreMisconfigured
from airflow_checkpoint_provider.storage import Store

SELDOM = 30.0  # seconds for which the answer to a question is good whose answer seldom changes: where a connection leads, which jobs there are


class ConnectionUnreadable(CheckpointError, ConnectionError, code="CKP640"):
    """Airflow could not tell whether the connection exists.

    The API server, the database or a secrets backend did not answer.
    """


class NoConnection(StoreMisconfigured, code="CKP641"):
    """The connection does not exist, so the checkpoint location is unknown.

    ``about`` has ``named`` if the connection was named explicitly: then there is no default location.
    """


class ConnectionNotNamed(CheckpointError, LookupError, code="CKP642"):
    """The pages do not open a connection that no administrator has named: see `[checkpoints] connections`."""


_OF_TEAM = (
    "Pages and commands ask for no team. Store the connection in Airflow's database, with its team, where they find it; or give it to them"
    " under a name of its own, without a team."
)
_SILENT = "Check that API server, database and secrets backends answer, then try again."
_CHANGED = (
    "If the error names a part of Airflow, this Airflow was not tried with this package, and its own look-up gives one answer for a connection"
    " that is absent and for one that it cannot read. Add the connection if it is absent, or install a newer version of this package."
)


def find_connection(conn_id: str) -> Connection | None:
    """Return the connection, or None if it does not exist. Raise ``ConnectionUnreadable`` if that is unknown.

    ``BaseHook.get_connection`` says "isn't defined" in both cases. If the API server is down, this takes about 10 s, because
    Airflow retries.
    """
    try:
        return _airflow.find_connection(conn_id)
    except Exception as error:
        other, changed = isinstance(error, _airflow.OtherTeam), isinstance(error, _airflow.CHANGED)
        raise ConnectionUnreadable(
            f"Airflow could not say whether connection {conn_id!r} exists ({type(error).__name__}: {error})."
            f" Nothing was assumed. {_OF_TEAM if other else _CHANGED if changed else _SILENT}",
            conn_id=conn_id,
        ) from error


def where(store: Store) -> tuple[str, Any]:
    """Return the values by which the stores of two look-ups are the same."""
    return store.uri, getattr(store, "settings", None)
