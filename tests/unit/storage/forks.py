"""Processes that run beside a test. Runs on Linux."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess

fork = multiprocessing.get_context("fork")


@contextmanager
def running(*targets: Callable[[], object]) -> Iterator[list[ForkProcess]]:
    """Run a process for each target; kill all at the end."""
    processes: list[ForkProcess] = []
    try:
        for target in targets:
            process = fork.Process(target=target)
            process.start()
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join(10)
