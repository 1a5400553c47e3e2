"""The files of a query that are copied while others change them, and that are fetched in pieces. Runs anywhere."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.location.copying import copy_files, copy_position
from airflow_checkpoint_provider.location.files import Location, LocationFiles, Position, needed_files
from airflow_checkpoint_provider.protocol.keys import location_path
from airflow_checkpoint_provider.spark.queries.location.locations import LocatedQuery, Locations
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.queries.snapshot import TRIES, QuerySnapshot
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, Store
from airflow_checkpoint_provider.storage.base import Listed
from tests.support.faults import Fault, FaultyStore, Killed
from tests.unit.spark.driver import Driver

UID = "rows"
OLD, NEW = "query/rows/1-abc", "query/rows/2-def"
STORES = b'v1\n{"stateStoreInfo":[{"storeName":"default","numPartitions":2}]}'


def offsets(entry: int) -> bytes:
    return b'v1\n{"batchWatermarkMs":0}\n' + json.dumps({"logOffset": entry}).encode()


def batch(number: int) -> dict[str, bytes]:
    """Return the files that a committed batch of a query with state adds to its location."""
    state = {f"state/0/{partition}/{number + 1}.delta": b"rows" for partition in (0, 1)}
    return {f"offsets/{number}": offsets(number), f"commits/{number}": b"v1\n{}", f"sources/0/{number}": b"v1", **state}


def location(store: Store, batches: int, key: str = OLD) -> Location:
    """Return a location with so many committed batches."""
    files = {"metadata": b'{"id":"1"}', "state/0/_metadata/metadata": STORES}
    for number in range(batches):
        files |= batch(number)
    for name, body in files.items():
        store.overwrite(f"{key}/{name}", body)
    return Location(store, key)


# -- what cannot be read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 1, 12, 26, len(offsets(2)) - 1])
def test_torn_offsets_of_the_newest_batch_are_damage(tmp_path: Path, left: int) -> None:
    """A disk that lost power may have lost their end. The batch is not left out: nothing is copied."""
    torn, own = location(LocalStore(tmp_path), 3), Location(LocalStore(tmp_path), NEW)
    torn.store.delete([torn.key_of("commits/2")])
    torn.store.overwrite(torn.key_of("offsets/2"), offsets(2)[:left])
    with pytest.raises(Damaged, match="offsets/2 is not what Spark writes"):
        copy_position((torn,), Position(2, 1), own)
    assert own.sizes() == {}


# -- what changes meanwhile ----------------------------------------------------------------------------------------------


class Busy(LocalStore):
    """A store in which Spark works on, by the next one of ``acts``, as soon as the location ``key`` was listed."""

    key, acts = "", deque[Callable[["Busy"], object]]()

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        yield from super().list(prefix, after)
        if prefix == self.key and self.acts:
            self.acts.popleft()(self)


def purged(store: Store, key: str) -> None:
    """Do what Spark does after a batch: delete old entries of its logs, and old state."""
    store.delete([f"{key}/{name}" for name in ("offsets/1", "commits/1", "state/0/0/2.delta", "state/0/1/2.delta")])


def compacted(store: Store, key: str) -> None:
    """Let the source's log begin with entry 2, in which the older ones are, too."""
    store.overwrite(f"{key}/sources/0/2.compact", b"v1")
    store.delete([f"{key}/sources/0/{number}" for number in range(3)])


@pytest.mark.parametrize("change", [purged, compacted])
def test_file_that_is_deleted_while_others_are_copied_is_damage(
    tmp_path: Path, change: Callable[[Store, str], None]
) -> None:
    store = Busy(tmp_path)
    old, own = location(store, 3), Location(store, NEW)
    store.key, store.acts = OLD, deque([lambda store: change(store, OLD)])
    found = LocationFiles(old)
    names = needed_files(found, Position(2, 2))
    with pytest.raises(Damaged, match="is missing, so it cannot be copied"):
        copy_files(found, own, names)


def snapshot(driver: Driver, key: str) -> QuerySnapshot:
    """Return the snapshot of a query that runs in the location ``key`` of a driver's history."""
    own = Location(driver.attempt.store, driver.attempt.keys.file_set(key))
    located = LocatedQuery(UID, key, own, (), (), Position())
    sink = SimpleNamespace(target=SimpleNamespace(format="parquet"), path="file:/out", newest_file=lambda _: None)
    running = RunningQuery(driver.attempt, Locations(driver.attempt), located, cast(Any, None), cast(Any, sink))
    return QuerySnapshot(driver.attempt, running, "run", "queries", None)


def goes_on(number: int, key: str) -> Callable[[Busy], object]:
    """Return what Spark does meanwhile: it commits two batches after ``number``, and deletes the offsets of that."""

    def act(store: Busy) -> None:
        for name, body in (batch(number + 1) | batch(number + 2)).items():
            store.overwrite(f"{key}/{name}", body)
        store.delete([f"{key}/offsets/{number}"])

    return act


@pytest.mark.parametrize("times", [TRIES - 1, TRIES])
def test_newer_batch_is_taken_if_files_are_deleted_while_a_checkpoint_copies_them(tmp_path: Path, times: int) -> None:
    store = Busy(tmp_path)
    driver = Driver(store)
    path = location_path(UID, driver.attempt.epoch, "abc")
    key = driver.attempt.keys.file_set(path)
    location(store, 3, key)
    store.key, store.acts = key, deque(goes_on(2 + 2 * number, key) for number in range(times))
    taken = snapshot(driver, path)
    if times == TRIES:
        with pytest.raises(Damaged):
            taken.write(nobody_stops)
        return
    query = taken.write(nobody_stops).query
    assert query
    assert (query.batch, query.begun) == (2 + 2 * times, 2 + 2 * times)


def nobody_stops() -> None:
    """Let the checkpoint go on."""


# -- what is fetched in pieces -------------------------------------------------------------------------------------------


def test_driver_that_is_killed_while_it_fetches_state_is_followed_by_another() -> None:
    """The older driver has written the state of batch 2 after the location was copied. A copy of a part of it does not look whole."""
    killed = 0
    for call in range(1, 100):
        inner = MemoryStore()
        old, own = location(inner, 3), location(inner, 2, NEW)
        own.store.overwrite(own.key_of("offsets/2"), offsets(2))
        at_call = FaultyStore(inner, lambda one, call=call: Fault.KILLED_AFTER if one.number == call else Fault.NONE)  # type: ignore[misc]
        try:
            fetch_missing_state(own, old, at_call)
        except Killed:
            killed += 1
        else:
            assert call == killed + 1
            break
        left = "state/0/1/3.delta" in own.sizes() and "state/0/0/3.delta" in own.sizes()
        assert Locations(cast(Any, None)).has_state(located(own, old)) == left
        fetch_missing_state(own, old, inner)
        assert [own.read(f"state/0/{partition}/3.delta") for partition in (0, 1)] == [b"rows", b"rows"]
    assert killed > 5


def fetch_missing_state(own: Location, old: Location, store: Any) -> None:
    Locations(cast(Any, None)).fetch_missing_state(located(Location(store, own.key), Location(store, old.key)))


def located(own: Location, old: Location) -> LocatedQuery:
    return LocatedQuery(UID, own.key, own, (old,), (old,), Position(2, 1))
