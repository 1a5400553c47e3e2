"""The threads in which triggers ask a storage: some for each connection. Runs in Airflow (triggerer).

All triggers of a triggerer, those of other packages too, share the threads of ``asyncio.to_thread``, and so does each look-up of a name. A
storage that hangs would take all of them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

THREADS = 8  # for each kind of question to a connection

P = ParamSpec("P")
T = TypeVar("T")

_pools: dict[tuple[str, str], ThreadPoolExecutor] = {}  # the event loop alone uses it


async def in_thread(kind: str, connection: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call that may take long. ``kind``: "poll" or "stop", so that a stop waits for no poll."""
    if (kind, connection) not in _pools:
        _pools[kind, connection] = ThreadPoolExecutor(THREADS, thread_name_prefix=f"checkpoint-{kind}")
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(
        _pools[kind, connection], lambda: context.run(call, *args, **kwargs)
    )
