"""The streaming job takes a savepoint, and goes back to it. Runs on Linux."""

from __future__ import annotations

import signal

from airflow_checkpoint_provider.cli import change
from tests.integration.runtime.savepoint_requests import ask, found
from tests.integration.runtime.streams import FILES, ending, has_batches, source
from tests.support.runs import Home, Running
from tests.support.streams import add_files
from tests.support.waiting import wait_until


def saved(home: Home, running: Running) -> int:
    """Return the id of a savepoint that is taken now."""
    number = ask(home, running, "savepoint")
    wait_until(lambda: bool(found(home, number).completed_at), 120, running.said)
    return number


def killed_behind_a_savepoint(home: Home) -> int:
    """Kill a driver two batches after its savepoint, when rows for more have come. Return the id of the savepoint."""
    add_files(source(home), *range(4))
    with home.started() as killed:
        wait_until(has_batches(home, 2), 120, killed.said)
        number = saved(home, killed)
        add_files(source(home), *range(4, 8))
        wait_until(has_batches(home, 4), 120, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    add_files(source(home), *range(8, FILES))
    ending(home)
    return number


def restore(home: Home, number: int, *, rewind_sink: bool) -> None:
    """As ``checkpoints restore stream --from chk-N``."""
    source = change.RestoreSource(f"chk-{number}", rewind_sink=rewind_sink)
    change.restore(home.store, "stream", None, source, change.Approval(yes=True))
