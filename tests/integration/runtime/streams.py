"""The streaming job ``tests/jobs/stream.py``: what its next driver is told, where it stands, and what its sink holds. Runs on Linux."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.location.files import COMMITS, Location, LocationFiles
from airflow_checkpoint_provider.location.rescaling import PARTITIONS
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from tests.integration.runtime.savepoint_requests import ask, found
from tests.support.launches import Launches
from tests.support.runs import Ended, Home, Running
from tests.support.streams import add_files, expected, rows_in, sink_log
from tests.support.waiting import wait_until

FILES = 12
EVERYWHERE = pytest.mark.parametrize("stream", ["disk", pytest.param("S3", marks=pytest.mark.slow)], indirect=True)


# -- what it reads and writes --------------------------------------------------------------------------------------------


def source(home: Home) -> Path:
    return Path(f"{home.out}-in")


def exact(home: Home, files: int) -> bool:
    return rows_in(home.out) == expected(files)


def locations(home: Home) -> list[str]:
    query = home.coordinator().state.query("rows")
    return [location.path for location in query.locations] if query else []


def newest(home: Home) -> Location:
    """Return the location in which the query runs now."""
    return Location(home.store, f"{History('stream').prefix}/{locations(home)[-1]}")


def has_batches(home: Home, number: int) -> Callable[[], bool]:
    return lambda: len(sink_log(home.out)) >= number


def has_committed(home: Home, batch: int) -> Callable[[], bool]:
    return lambda: bool(locations(home)) and batch in newest(home).batches(COMMITS)


def saved_query(home: Home) -> QueryDetail:
    """Return the query in the newest checkpoint."""
    coordinator = home.coordinator()
    detail = coordinator.read_seal(coordinator.state.newest_first()[0]).states["rows"].query
    assert detail
    return detail


def runs_in(hold: Path) -> list[str]:
    """Return the runs of the query that have stood still, the oldest first."""
    seen = sorted(hold.parent.glob(f"{hold.name}.*"), key=lambda file: file.stat().st_mtime)
    return [file.suffix.removeprefix(".") for file in seen]


def partitions_of(own: Location) -> int:
    """Return in how many partitions the state is, by the confs of the newest batch, and by its files."""
    number = int(own.offsets(own.committed()).confs[PARTITIONS])
    found = LocationFiles(own)
    assert {int(store.split("/")[2]) for store in found.stores} == set(range(number))
    assert found.has_state(own.committed() + 1)
    return number


# -- what the next driver is told ----------------------------------------------------------------------------------------


def launches(home: Home) -> Launches:
    return Launches(home.store, "stream", of_run=False)


def running_forever(home: Home, **env: str) -> None:
    home.env |= {"STREAM_FOREVER": "1", **env}


def blind(home: Home, **env: str) -> None:
    """Let the next driver run for ever, and not notice that it was replaced."""
    running_forever(home, STREAM_STATE="1", STREAM_BLIND="1", **env)


def ending(home: Home) -> None:
    home.env.pop("STREAM_FOREVER", None)


def taking_over(home: Home) -> None:
    """Let the next driver read all that there is, and end."""
    ending(home)
    for name in ("STREAM_BLIND", "STREAM_HOLD", "STREAM_WRITTEN"):
        home.env.pop(name, None)


def holding(home: Home) -> Path:
    """Return the file that holds the batches of the next driver."""
    hold = home.folder / f"hold-{uuid.uuid4().hex[:6]}"
    home.env["STREAM_HOLD"] = str(hold)
    return hold


# -- in the middle of a batch --------------------------------------------------------------------------------------------


@contextmanager
def in_batch_one(home: Home, hold: Path, confs: dict[str, str] | None = None) -> Iterator[Running]:
    """Yield a driver that has written batch 0 and stands still in batch 1, of files 2 and 3."""
    add_files(source(home), 0, 1)
    with home.started(confs=confs or {}) as running:
        wait_until(has_batches(home, 1), 120, running.said)
        hold.touch()
        add_files(source(home), 2, 3)
        (location,) = locations(home)
        begun = Location(home.store, f"{History('stream').prefix}/{location}")
        wait_until(lambda: begun.batches("offsets")[-1] == 1, 120, running.said)
        yield running


def killed_in_batch_one(home: Home, confs: dict[str, str] | None = None) -> Path:
    """Kill a driver that stands still in batch 1. Return the file that holds batches."""
    hold = holding(home)
    with in_batch_one(home, hold, confs) as killed:
        killed.send(signal.SIGKILL)
        killed.wait()
    return hold


def goes_on_behind_batch_one(home: Home, hold: Path) -> Ended:
    """Let another driver run that batch again and read all files, though more have arrived. Return how it ended."""
    hold.unlink()
    add_files(source(home), *range(4, FILES))
    ending(home)
    again = home.run()
    assert again.code == 0, again.log
    assert "repeats batch 1, which an earlier attempt began" in again.log
    return again


# -- savepoints ----------------------------------------------------------------------------------------------------------


def stop_with_savepoint(home: Home, running: Running, kind: str = "suspend_savepoint") -> str:
    """Ask for a stop with a savepoint, wait for the end, and return where the savepoint lies."""
    number = ask(home, running, kind)
    ended = running.wait()
    assert ended.code == 79, ended.log
    target = found(home, number).target
    assert target, ended.log
    return target


def resume(coordinator: Coordinator) -> None:
    """Let the job start again from the savepoint with which it was stopped."""
    base = coordinator.state.restore_point()
    token = Token(dag="", run=uuid.uuid4().hex, task="resume")
    coordinator.journal.append(c.Restore(token=token, base=base, by="ann", reason="to go on", rewind_queries=True))


def forked(stream: Home, savepoint: str, folder: Path) -> Home:
    """Return another job that starts from the savepoint, reads the same files, and writes to another path."""
    home = Home(folder, "stream.py")
    home.env |= {"STREAM_IN": str(source(stream)), "STREAM_RESTORE": savepoint}
    return home
