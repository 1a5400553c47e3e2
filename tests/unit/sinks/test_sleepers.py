"""Tests that a process that sleeps before any of its requests changes nothing that others did meanwhile. Run anywhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import OverwrittenSince, StoreUnavailable
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, S3Store, Store
from airflow_checkpoint_provider.storage.s3 import clients
from tests.support.faults import Call, Fault, FaultyStore, Killed
from tests.support.s3server import S3Server
from tests.support.targets import MONDAY, TUESDAY, files_of, left, name_of, staged, visible

MOST_REQUESTS = 60
Meanwhile = Callable[[Store], None]


def tuesday_overwrites(store: Store) -> None:
    files = files_of(store, TUESDAY, overwrite=True)
    files.commit(staged(files, name_of(9), "today"))


def retry_commits(store: Store) -> None:
    files_of(store, overwrite=True).commit(monday(store))


def retry_commits_and_tuesday_overwrites(store: Store) -> None:
    retry_commits(store)
    tuesday_overwrites(store)


def run_starts_over(store: Store) -> None:
    """A cleared task gives up what its run has prepared, and computes all again."""
    files = files_of(store, replace(MONDAY, generation=1))
    committed = files.abort([name_of(1)], 0)
    files.commit(staged(files, name_of(8), "again", replaces=committed))


def tuesday_appends(store: Store) -> None:
    files = files_of(store, TUESDAY)
    files.commit(staged(files, name_of(9), "today"))


def monday(store: Store) -> Any:
    """Return Monday's transaction, as the journal keeps it."""
    return MONDAYS[store_of(store)]


MONDAYS: dict[int, Any] = {}


def store_of(store: Store) -> int:
    return hash(store.uri)


STORIES: dict[str, tuple[bool, Meanwhile, list[list[str]]]] = {
    "tuesday overwrites": (True, tuesday_overwrites, [["today"]]),
    "retry commits, tuesday overwrites": (True, retry_commits_and_tuesday_overwrites, [["today"]]),
    "retry commits": (True, retry_commits, [["a", "b"]]),
    "run starts over": (False, run_starts_over, [["again"]]),
    "tuesday appends": (False, tuesday_appends, [["a", "b", "today"]]),
}


class Sleeper:
    """Runs ``meanwhile`` just before request ``number`` of a process."""

    def __init__(self, number: int, meanwhile: Callable[[], None]) -> None:
        self.number, self.meanwhile, self.slept = number, meanwhile, False

    def __call__(self, call: Call) -> Fault:
        if call.number == self.number and not self.slept:
            self.slept = True
            self.meanwhile()
        return Fault.NONE


@pytest.fixture(params=["memory", "local"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    made: list[Store] = []

    def new() -> Store:
        number = len(made)
        local = request.param == "local"
        made.append(LocalStore(tmp_path / f"t{number}", private=False) if local else MemoryStore(f"{tmp_path}{number}"))
        return made[-1]

    return new


def prepare(store: Store, *, overwrite: bool) -> None:
    """Let Monday's run prepare its rows in a target that holds some already."""
    store.create("part-0.csv", b"before" if overwrite else b"")
    files = files_of(store, overwrite=overwrite)
    MONDAYS[store_of(store)] = staged(files, name_of(1), "a", "b")


@pytest.mark.parametrize("story", STORIES)
def test_commit_that_slept_before_any_request(stores: Callable[[], Store], story: str) -> None:
    overwrite, meanwhile, expected = STORIES[story]
    rounds = 0
    for number in range(1, MOST_REQUESTS):
        store = stores()
        prepare(store, overwrite=overwrite)
        sleeper = Sleeper(number, lambda store=store: meanwhile(store))  # type: ignore[misc]
        asleep = PublishedFiles(FaultyStore(store, sleeper), MONDAY, overwrite=overwrite, patience=0)
        with suppress(OverwrittenSince):
            asleep.commit(monday(store))
        if not sleeper.slept:
            break
        rounds += 1
        assert visible(store) in expected, f"slept before request {number}"
        assert left(store) == []
    assert rounds > 8


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.LOST])
def test_commit_that_was_killed_at_any_request(stores: Callable[[], Store], story: str, fault: Fault) -> None:
    overwrite, meanwhile, expected = STORIES[story]
    killed = 0
    for number in range(1, MOST_REQUESTS):
        store = stores()
        prepare(store, overwrite=overwrite)
        plan = lambda call, number=number: fault if call.number == number else Fault.NONE  # noqa: E731
        dying = PublishedFiles(FaultyStore(store, plan), MONDAY, overwrite=overwrite, patience=0)
        try:
            dying.commit(monday(store))
            if fault is not Fault.LOST:
                break
        except (Killed, StoreUnavailable):
            killed += 1
        meanwhile(store)
        if story != "run starts over":
            with suppress(OverwrittenSince):
                files_of(store, overwrite=overwrite).commit(monday(store))
        assert visible(store) in expected, f"{fault} at request {number}"
        assert left(store) == []
    assert killed > 4


HARDEST = "retry commits, tuesday overwrites"  # the others are slow: a request of each takes milliseconds


@pytest.mark.parametrize(
    "story", [name if name == HARDEST else pytest.param(name, marks=pytest.mark.slow) for name in STORIES]
)
def test_commit_in_s3_that_slept_before_any_request(s3: S3Server, bucket: str, story: str) -> None:
    """Requests of one ``publish`` are many in S3: begin an upload, copy, end it."""
    overwrite, meanwhile, expected = STORIES[story]
    rounds = 0
    for number in range(1, MOST_REQUESTS):
        store = S3Store(bucket, f"{story.replace(' ', '-')}-{number}", s3.settings())
        prepare(store, overwrite=overwrite)
        slept = counted = 0

        def wait(number: int = number, store: Store = store, **_: object) -> None:
            nonlocal counted, slept
            counted += 1
            if counted == number:
                slept = 1
                meanwhile(store)

        own = replace(s3.settings(), addressing_style="path")  # a client of its own
        events = [client.meta.events for client in (clients(own).once, clients(own).patient)]
        for event in events:
            event.register("before-call.s3", wait)
        asleep = PublishedFiles(S3Store(bucket, store.prefix.rstrip("/"), own), MONDAY, overwrite=overwrite, patience=0)
        try:
            with suppress(OverwrittenSince):
                while True:
                    try:
                        asleep.commit(monday(store))
                        break
                    except StoreUnavailable:  # the driver tries again
                        assert slept
        finally:
            for event in events:
                event.unregister("before-call.s3", wait)
        if not slept:
            break
        rounds += 1
        assert visible(store) in expected, f"slept before request {number}"
        assert left(store) == []
        uploads = clients(s3.settings()).patient.list_multipart_uploads(Bucket=bucket, Prefix=store.prefix)
        assert not uploads.get("Uploads")
    assert rounds > 12
