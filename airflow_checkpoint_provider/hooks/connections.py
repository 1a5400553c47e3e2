"""Reading a connection so that "does not exist" is never "could not be read". Runs in Airflow (all processes)."""

from __future__ import annotations

from airflow.sdk import Connection

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.errors import CheckpointError, StoreMisconfigured


class ConnectionUnreadable(CheckpointError, ConnectionError):
    """Airflow could not tell whether the connection exists.

    The API server, the database or a secrets backend did not answer.
    """

    code = "CKP640"


class NoConnection(StoreMisconfigured):
    """The connection does not exist, so the checkpoint location is unknown.

    ``about`` has ``named`` if the connection was named explicitly: then there is no default location.
    """

    code = "CKP641"


def find_connection(conn_id: str) -> Connection | None:
    """The connection, or None if it does not exist. Raises ``ConnectionUnreadable`` if that cannot be told.

    ``BaseHook.get_connection`` says "isn't defined" in both cases. With the API server down this takes about 10 s, as
    long as Airflow tries again by itself.
    """
    try:
        return _airflow.look_up_connection(conn_id)
    except Exception as error:
        raise ConnectionUnreadable(
            f"Airflow could not say whether connection {conn_id!r} exists ({type(error).__name__}: {error})."
            " Nothing was assumed. Check that API server, database and secrets backends answer, then try again.",
            conn_id=conn_id,
        ) from error
