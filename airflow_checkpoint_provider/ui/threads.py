"""The threads in which the pages are made, and the turns of their users: few of each. Runs in Airflow (API server).

None of these threads is one that Airflow's own answers use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import anyio.to_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

THREADS = 4  # more would not be faster: Python runs one at a time
AT_ONCE = 2  # of these threads that one user holds

USER = ContextVar("the user whose request is answered", default="")  # empty: nobody is logged in

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Lets each user do ``most`` things at once. Further ones wait for the same user's turn, and for no other user.

    So a user with very many requests delays no other user. Use it from one event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lanes = WeakValueDictionary[Hashable, asyncio.Semaphore]()  # those that somebody uses

    def of_user(self, *place: Hashable) -> asyncio.Semaphore:
        """Return the turns of the user whose request is answered, at ``place``."""
        return self._lanes.setdefault((USER.get(), *place), asyncio.Semaphore(self._most))


_SHARED = RunVar[tuple[CapacityLimiter, Turns]]("threads of the checkpoint pages")  # one for each event loop


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call that takes long, such as a question to the auth manager, while the event loop answers other requests."""
    try:
        limiter, turns = _SHARED.get()
    except LookupError:
        limiter, turns = CapacityLimiter(THREADS), Turns(AT_ONCE)
        _SHARED.set((limiter, turns))
    async with turns.of_user():
        return await anyio.to_thread.run_sync(lambda: call(*args, **kwargs), limiter=limiter)
