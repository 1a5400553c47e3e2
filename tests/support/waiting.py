"""Waiting for a condition, with a bound. Runs anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    ready: Callable[[], object], seconds: float = 60.0, say: str | Callable[[], str] = "", *, every: float = 0.2
) -> None:
    """Ask ``ready`` until it is true, at first often, then at each ``every`` seconds.

    Past ``seconds``: ``TimeoutError`` with ``say``, or with what it answers then.
    """
    end, pause = time.monotonic() + seconds, 0.01
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds:.0f} s: {say if isinstance(say, str) else say()}")
        time.sleep(min(pause, every))
        pause *= 2
