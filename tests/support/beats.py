"""A driver on another host, as far as its heartbeat shows it. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.journal import utc_text
from airflow_checkpoint_provider.coordinator.liveness import Beat, Process
from airflow_checkpoint_provider.protocol.keys import beat_number
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.storage import Store

ELSEWHERE = Process(host="elsewhere", boot_id="another boot", pid_namespace="pid:[1]", pid=7, start_ticks="1")

CLOCKS_OFF = pytest.mark.parametrize(
    "off",
    [
        pytest.param(timedelta(minutes=-5), id="5 min slow", marks=pytest.mark.slow),  # as 25 hours
        pytest.param(timedelta(minutes=5), id="5 min fast", marks=pytest.mark.slow),
        pytest.param(timedelta(hours=-25), id="25 h slow"),
        pytest.param(timedelta(hours=25), id="25 h fast"),
    ],
)


def put_beat(store: Store, key: str, counter: int = 1, off: timedelta = timedelta(), **fields: object) -> None:
    """Write one beat of a process elsewhere, whose clock is ``off`` from this host's."""
    at = utc_text(datetime.now(UTC) + off)
    beat = Beat(counter=counter, epoch=beat_number(key), at=at, process=ELSEWHERE)
    store.overwrite(key, canonical({**beat.to_json(), **fields}))


@contextmanager
def beating(store: Store, key: str, off: timedelta = timedelta(), every: float = 0.01, **fields: Any) -> Iterator[None]:
    """A driver elsewhere that beats under ``key``, from before this begins until it ends."""
    stop = threading.Event()
    put_beat(store, key, off=off, **fields)

    def beat() -> None:
        counter = 1
        while not stop.wait(every):
            counter += 1
            put_beat(store, key, counter, off, **fields)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=10)
