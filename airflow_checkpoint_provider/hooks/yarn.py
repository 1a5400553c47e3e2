"""What YARN's resource manager says of an application, by its REST API. It knows no Spark provider. Runs in Airflow (worker, triggerer)."""

from __future__ import annotations

import requests

from airflow_checkpoint_provider.hooks.connections import find_connection

ADDRESS = "yarn_resourcemanager_webapp_address"  # in the extra of a Spark connection, as the provider reads it
LIVES = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
NOT_KNOWN = "NOT KNOWN"  # not a word of YARN
ERRORS = (requests.RequestException, LookupError, TypeError, ValueError)  # also of an answer that is not YARN's
ANSWER = 10.0  # seconds


def address_in(conn_id: str) -> str | None:
    """Return where the resource manager of a Spark connection answers; None if the connection does not say it."""
    connection = find_connection(conn_id)
    address = str(connection.extra_dejson.get(ADDRESS) or "").strip() if connection else ""
    return (address if "://" in address else f"http://{address}").rstrip("/") if address else None


def state_of(address: str, application: str) -> str:
    """Return the state of an application, ``NOT_KNOWN`` if the resource manager says that it has none of that name. Raise ``ERRORS``."""
    answer = requests.get(f"{address}/ws/v1/cluster/apps/{application}", timeout=ANSWER)
    if answer.status_code == requests.codes.not_found and not_known(answer.text):
        return NOT_KNOWN
    answer.raise_for_status()
    return str(answer.json()["app"]["state"])


def not_known(text: str) -> bool:
    """Return whether a resource manager says that it does not know the application; another server than one may answer 404, too."""
    return "NotFoundException" in text
