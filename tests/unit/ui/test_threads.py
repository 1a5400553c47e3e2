"""The threads of the pages: few, few of them for one user, and none of those of Airflow's own answers."""

from __future__ import annotations

import asyncio
import threading

import anyio.to_thread

from airflow_checkpoint_provider.ui.threads import AT_ONCE, THREADS, USER, in_thread


def test_calls_that_hang_hold_no_thread_of_airflow() -> None:
    goes_on, begun = threading.Event(), list[int]()

    def hangs() -> None:
        begun.append(threading.get_ident())
        assert goes_on.wait(60)

    async def look() -> int:
        calls = []
        for number in range(5 * THREADS):
            USER.set(f"user {number}")
            calls.append(asyncio.create_task(in_thread(hangs)))
        while len(begun) < THREADS:
            await asyncio.sleep(0.01)
        held = anyio.to_thread.current_default_thread_limiter().borrowed_tokens
        assert len(begun) == THREADS
        goes_on.set()
        await asyncio.gather(*calls)
        return held

    assert asyncio.run(look()) == 0
    assert len(begun) == 5 * THREADS


def test_one_user_holds_few_threads_and_others_are_answered_meanwhile() -> None:
    goes_on, begun = threading.Event(), list[int]()

    def hangs() -> None:
        begun.append(threading.get_ident())
        assert goes_on.wait(60)

    async def look() -> str:
        USER.set("greedy")
        calls = [asyncio.create_task(in_thread(hangs)) for _ in range(3200)]
        while len(begun) < AT_ONCE:
            await asyncio.sleep(0.01)
        USER.set("modest")
        answer = await asyncio.wait_for(in_thread(str, "done"), 60)
        assert len(begun) == AT_ONCE
        for call in calls[AT_ONCE:]:
            call.cancel()
        goes_on.set()
        await asyncio.gather(*calls, return_exceptions=True)
        return answer

    assert asyncio.run(look()) == "done"
    assert len(begun) == AT_ONCE
