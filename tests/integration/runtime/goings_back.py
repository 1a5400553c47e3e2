"""The streaming job takes a savepoint, and goes back to it. Runs on Linux."""

from __future__ import annotations

from airflow_checkpoint_provider.cli import change
from tests.integration.runtime.savepoint_requests import ask, found
from tests.support.runs import Home, Running
from tests.support.waiting import wait_until


def saved(home: Home, running: Running) -> int:
    """Return the id of a savepoint that is taken now."""
    number = ask(home, running, "savepoint")
    wait_until(lambda: bool(found(home, number).completed_at), 120, running.said)
    return number


def restore(home: Home, number: int, *, rewind_sink: bool) -> None:
    """As ``checkpoints restore stream --from chk-N``."""
    source = change.RestoreSource(f"chk-{number}", rewind_sink=rewind_sink)
    change.restore(home.store, "stream", None, source, change.Approval(yes=True))
