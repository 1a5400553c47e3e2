"""The threads of the pages: few, and none of those of Airflow's own answers."""

from __future__ import annotations

import asyncio
import threading

import anyio.to_thread

from airflow_checkpoint_provider.ui.threads import THREADS, in_thread


def test_calls_that_hang_hold_no_thread_of_airflow() -> None:
    goes_on, begun = threading.Event(), list[int]()

    def hangs() -> None:
        begun.append(threading.get_ident())
        assert goes_on.wait(60)

    async def look() -> int:
        calls = [asyncio.create_task(in_thread(hangs)) for _ in range(5 * THREADS)]
        while len(begun) < THREADS:
            await asyncio.sleep(0.01)
        held = anyio.to_thread.current_default_thread_limiter().borrowed_tokens
        assert len(begun) == THREADS
        goes_on.set()
        await asyncio.gather(*calls)
        return held

    assert asyncio.run(look()) == 0
    assert len(begun) == 5 * THREADS
