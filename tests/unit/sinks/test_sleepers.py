"""Tests that a process that sleeps or dies at any of its requests changes nothing that others did meanwhile. Run anywhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import OverwrittenSince, StoreUnavailable
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.storage import S3Store, Store
from airflow_checkpoint_provider.storage.s3 import clients
from tests.support.faults import Fault
from tests.support.s3server import S3Server
from tests.support.targets import MONDAY
from tests.unit.sinks.sleepers import (
    MOST_REQUESTS,
    STORIES,
    all_killed,
    all_slept,
    check,
    monday,
    new_stores,
    prepare,
    ready,
)

FAULTS = [Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.LOST]


@pytest.fixture(params=["memory", "local"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    return new_stores(tmp_path, local=request.param == "local")


@pytest.mark.parametrize("story", STORIES)
def test_commit_that_slept_before_any_request(stores: Callable[[], Store], story: str) -> None:
    assert all_slept(stores, story) > 8


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(  # the test above has both stores
    "stores", ["memory", pytest.param("local", marks=pytest.mark.slow)], indirect=True
)
def test_commit_that_was_killed_at_any_request(stores: Callable[[], Store], story: str, fault: Fault) -> None:
    assert all_killed(stores, story, fault) > 8


HARDEST = "retry commits, tuesday overwrites"  # the others are slow: a request of each takes milliseconds


@pytest.mark.parametrize(
    "story", [name if name == HARDEST else pytest.param(name, marks=pytest.mark.slow) for name in STORIES]
)
@pytest.mark.parametrize(  # a third of the requests shows it, and the stores above sleep before each
    "every", [pytest.param(3, id="third"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)
def test_commit_in_s3_that_slept_before_any_request(s3: S3Server, bucket: str, story: str, every: int) -> None:
    """Requests of one ``publish`` are many in S3: begin an upload, copy, end it."""
    overwrite, meanwhile, expected = STORIES[story]
    rounds = 0
    for number in range(1, MOST_REQUESTS, every):
        store = S3Store(bucket, f"{story.replace(' ', '-')}-{number}", s3.settings())
        prepare(store, overwrite=overwrite)
        ready(store, story)
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
        check(store, expected, f"slept before request {number}")
        uploads = clients(s3.settings()).patient.list_multipart_uploads(Bucket=bucket, Prefix=store.prefix)
        assert not uploads.get("Uploads")
    assert rounds > 12 / every
