"""The look-up of a connection, which distinguishes "does not exist" from "cannot be read". Runs in Airflow (all processes)."""

from __future__ import annotations

from airflow.sdk import Connection

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.errors import CheckpointError, StoreMisconfigured


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


def find_connection(conn_id: str) -> Connection | None:
    """Return the connection, or None if it does not exist. Raise ``ConnectionUnreadable`` if that is unknown.

    ``BaseHook.get_connection`` says "isn't defined" in both cases. If the API server is down, this takes about 10 s, because
    Airflow retries.
    """
    try:
        return _airflow.find_connection(conn_id)
    except Exception as error:
        raise ConnectionUnreadable(
            f"Airflow could not say whether connection {conn_id!r} exists ({type(error).__name__}: {error})."
            " Nothing was assumed. Check that API server, database and secrets backends answer, then try again.",
            conn_id=conn_id,
        ) from error
