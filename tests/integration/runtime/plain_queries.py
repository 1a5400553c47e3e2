"""The streaming job without this package: it is taken over, or was released. Runs on Linux."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.storage import open_store
from tests.integration.runtime.streams import has_batches, holding, running_forever, source
from tests.support.runs import Home, Running
from tests.support.streams import add_files
from tests.support.waiting import wait_until


def location_of(home: Home) -> tuple[str, Location]:
    """Return the location of the query without this package."""
    if home.store.uri.startswith("s3:"):
        return f"{home.store.uri}/plain".replace("s3:", "s3a:"), Location(home.store, "plain")
    return str(home.folder / "plain"), Location(open_store(str(home.folder)), "plain")


@contextmanager
def plain_in_batch_one(home: Home, files: int) -> Iterator[tuple[Running, Path]]:
    """Yield a driver without this package that stands still in batch 1, and the file that holds it. There are so many files."""
    uri, location = location_of(home)
    running_forever(home, STREAM_STATE="1", STREAM_PLAIN=uri)
    hold = holding(home)
    add_files(source(home), 0, 1)
    with home.started() as plain:
        wait_until(has_batches(home, 1), 120, plain.said)
        hold.touch()
        add_files(source(home), *range(2, files))
        wait_until(lambda: location.batches("offsets")[-1] == 1, 120, plain.said)
        yield plain, hold
