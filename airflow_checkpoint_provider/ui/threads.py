"""The threads in which the pages are made: few, and none of those that Airflow's own answers use. Runs in Airflow (API server)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

THREADS = 4  # more would not be faster: Python runs one at a time
_LIMITER = RunVar[CapacityLimiter]("threads of the checkpoint pages")  # one for each event loop

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what takes long, such as a question to the auth manager, while the event loop answers others."""
    try:
        limiter = _LIMITER.get()
    except LookupError:
        limiter = CapacityLimiter(THREADS)
        _LIMITER.set(limiter)
    return await anyio.to_thread.run_sync(lambda: call(*args, **kwargs), limiter=limiter)
