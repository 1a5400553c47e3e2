"""Waiting for a condition, with a bound. Runs anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(ready: Callable[[], object], seconds: float, say: Callable[[], str], *, every: float = 0.2) -> None:
    """Ask ``ready`` until it is true. Past ``seconds``: ``TimeoutError`` with what ``say`` answers then."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds:.0f} s: {say()}")
        time.sleep(every)
