"""Many processes at one key, and killed writers: one winner and no partial object. Runs on Linux."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, Put
from tests.support.waiting import wait_until
from tests.unit.storage.forks import fork, running

WRITERS = 32
SIZE = 20_000  # bytes, more than one page
KEY = "journal/1"


def body(writer: int, size: int = SIZE) -> bytes:
    return bytes([writer]) * size


def write_of(found: bytes | None, size: int = SIZE) -> int:
    """Return the writer; fail if the bytes are not the whole body of one writer."""
    assert found
    assert found == body(found[0], size)
    return found[0]


def race(store: LocalStore, barrier: Barrier, results: Queue[Any], rounds: int, writer: int) -> None:
    """Put at one key at the same time as the others, then read the key."""
    won, read = [], []
    for n in range(rounds):
        barrier.wait(60)
        won.append(store.create(f"journal/{n}", body(writer)) is Put.STORED)
        read.append(write_of(store.read(f"journal/{n}")))
    results.put((writer, won, read))


@pytest.mark.parametrize("rounds", [15, pytest.param(40, marks=pytest.mark.slow)])
def test_one_of_32_processes_wins_and_all_read_its_bytes(tmp_path: Path, rounds: int) -> None:
    store, barrier, results = LocalStore(tmp_path / "new" / "root"), fork.Barrier(WRITERS), fork.Queue()
    with running(*(partial(race, store, barrier, results, rounds, writer) for writer in range(WRITERS))):
        answers = [results.get(timeout=90) for _ in range(WRITERS)]
    for n in range(rounds):
        winners = [writer for writer, won, _ in answers if won[n]]
        assert winners == [write_of(store.read(f"journal/{n}"))]
        assert {read[n] for _, _, read in answers} == set(winners)
    assert len(os.listdir(f"{store.root}/journal")) == rounds


def beat(store: LocalStore, ready: Any, writer: int) -> None:
    while True:
        store.overwrite("heartbeat", body(writer))
        ready.set()


def test_overwritten_object_is_read_whole(tmp_path: Path) -> None:
    store, ready = LocalStore(tmp_path), [fork.Event() for _ in range(2)]
    with running(*(partial(beat, store, event, writer) for writer, event in enumerate(ready))):
        assert all(event.wait(60) for event in ready)
        seen = {write_of(store.read("heartbeat")) for _ in range(2_000)}
    assert seen <= {0, 1}


def die_in(function: str, at: int, before: bool, store: LocalStore) -> None:
    """Put and die at call ``at`` of ``os.function``, before or after the call."""
    real: Callable[..., object] = getattr(os, function)
    count = 0

    def dying(*args: object, **how: Any) -> object:
        nonlocal count
        count += 1
        if count == at and before:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*args, **how)
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(os, function, dying)
    store.create(KEY, body(1))


@pytest.mark.parametrize(
    ("function", "at", "before", "there", "files"),
    [
        ("fsync", 1, True, False, 1),
        ("fsync", 1, False, False, 1),
        ("link", 1, True, False, 1),
        ("link", 1, False, True, 2),
        ("unlink", 1, True, True, 2),
        ("unlink", 1, False, True, 1),
        ("fsync", 2, True, True, 1),
        ("fsync", 2, False, True, 1),
    ],
)
def test_object_of_a_killed_put_is_complete_or_absent(
    tmp_path: Path, function: str, at: int, before: bool, there: bool, files: int
) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "journal").mkdir()
    with running(partial(die_in, function, at, before, store)) as [writer]:
        writer.join(60)
        assert writer.exitcode == -signal.SIGKILL
    assert len(os.listdir(tmp_path / "journal")) == files
    assert [listed.key for listed in store.list("")] == ([KEY] if there else [])
    assert store.create(KEY, body(2)) is (Put.EXISTS if there else Put.STORED)
    assert write_of(store.read(KEY)) == (1 if there else 2)


def die_of_a_full_file(store: LocalStore) -> None:
    """Put and die by the file size limit in the middle of the write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))
    store.create(KEY, body(1))


def test_object_of_a_put_killed_while_writing_is_absent(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with running(partial(die_of_a_full_file, store)) as [writer]:
        writer.join(60)
        assert writer.exitcode == -signal.SIGXFSZ
    [half] = (tmp_path / "journal").iterdir()
    assert half.stat().st_size == SIZE // 2
    assert store.read(KEY) is None
    assert store.create(KEY, body(2)) is Put.STORED


LARGE = 2_000_000


def write_on(store: LocalStore, start: int) -> None:
    for n in range(start, start + 1_000):
        store.create(f"journal/{n:06}", body(n % 251, LARGE))


def temporaries(folder: Path) -> int:
    return sum(name.startswith(".tmp") for name in os.listdir(folder))


def more_temporaries(folder: Path, than: int) -> bool:
    return temporaries(folder) > than


@pytest.mark.parametrize("rounds", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_puts_list_no_partial_object(tmp_path: Path, rounds: int) -> None:
    """Kill each writer as soon as its temporary file exists, while most of its two megabytes are unwritten."""
    store, folder = LocalStore(tmp_path), tmp_path / "journal"
    folder.mkdir()
    for turn in range(rounds):
        left = temporaries(folder)
        with running(partial(write_on, store, turn * 1_000)):
            wait_until(partial(more_temporaries, folder, left), say="no temporary file came", every=0)
        for listed in store.list(""):
            assert write_of(store.read(listed.key), LARGE) == int(listed.key[-6:]) % 251
    assert temporaries(folder)
    store.delete_under("journal")
    assert not folder.exists()


def test_one_of_16_threads_wins_in_memory() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(16) as threads:
        for n in range(200):
            outcomes = list(threads.map(partial(store.create, f"{n}"), map(body, range(16))))
            assert outcomes.count(Put.STORED) == 1
