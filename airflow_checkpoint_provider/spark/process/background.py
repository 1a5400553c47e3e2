"""A thread that the process does not wait for: notifications and deletions run there. Runs in the Spark driver."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any


class Background:
    """Runs calls one after the other. A call that hangs delays no other thread, and does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[..., None], *args: Any) -> None:
        self._calls.put(lambda: call(*args))

    def close(self, timeout_s: float) -> bool:
        """Return whether all calls have returned, after ``timeout_s`` seconds at most."""
        self._calls.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException:  # noqa: BLE001 - sys.exit() of one must not take the later calls with it
                traceback.print_exc()
