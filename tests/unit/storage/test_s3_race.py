"""32 processes at one key of an S3 server: each key has one winner, and all read what it wrote. Runs on Linux."""

from __future__ import annotations

import multiprocessing
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from airflow_checkpoint_provider.storage import Put, S3Store
from tests.unit.storage.forks import running

WRITERS, ROUNDS = 32, 12
fork = multiprocessing.get_context("fork")


def race(store: S3Store, barrier: Barrier, results: Queue[Any], writer: int) -> None:
    won, read = [], []
    for n in range(ROUNDS):
        barrier.wait(120)
        won.append(store.create(f"journal/{n}", f"{writer}".encode()) is Put.STORED)
        read.append(int(store.read(f"journal/{n}") or b"-1"))
    results.put((writer, won, read))


def test_one_of_32_processes_wins_and_all_read_its_bytes(s3_store: S3Store) -> None:
    s3_store.read("absent")  # the server has served, and boto3 is there, before anyone forks
    barrier, results = fork.Barrier(WRITERS), fork.Queue()
    with running(*(partial(race, s3_store, barrier, results, writer) for writer in range(WRITERS))):
        answers = [results.get(timeout=240) for _ in range(WRITERS)]
    for n in range(ROUNDS):
        winners = [writer for writer, won, _ in answers if won[n]]
        assert winners == [int(s3_store.read(f"journal/{n}") or b"-1")]
        assert {read[n] for _, _, read in answers} == set(winners)
