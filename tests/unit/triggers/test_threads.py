"""A storage that hangs takes no thread that others need. Runs anywhere."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

from airflow_checkpoint_provider.triggers.threads import THREADS, in_thread

PATIENCE = 60  # seconds
NAME = ContextVar("name", default="")


def test_storage_that_hangs_delays_nobody_else() -> None:
    """Neither other connections, nor a stop of its own jobs, nor what the event loop's own threads do for other packages."""
    answers = threading.Event()

    async def triggers() -> list[str]:
        hanging = [asyncio.create_task(in_thread("poll", "dead", answers.wait)) for _ in range(10 * THREADS)]
        await asyncio.sleep(0)  # all of them have asked
        others = (in_thread("poll", "alive", str, 1), in_thread("stop", "dead", str, 2), asyncio.to_thread(str, 3))
        found = await asyncio.wait_for(asyncio.gather(*others), PATIENCE)
        answers.set()
        assert all(await asyncio.gather(*hanging))
        return [*found]

    try:
        assert asyncio.run(triggers()) == ["1", "2", "3"]
    finally:
        answers.set()


def test_thread_knows_for_whom_it_works() -> None:
    async def trigger() -> str:
        NAME.set("the trigger")
        return await in_thread("poll", "alive", NAME.get)

    assert asyncio.run(trigger()) == "the trigger"
