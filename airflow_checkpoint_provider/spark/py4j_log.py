"""The log of py4j, which at DEBUG shows the arguments of each call of Java. Runs in the Spark driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Level:
    """The level of py4j's logger while some thread hands secrets to Java, and the level before."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("py4j")
        self._lock = threading.Lock()
        self._threads, self._before = 0, logging.NOTSET

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Keep secrets out of the log, although a script has set DEBUG for all loggers. Several threads may be inside."""
        with self._lock:
            if not self._threads:
                self._before = self._logger.level
                self._logger.setLevel(max(self._logger.getEffectiveLevel(), logging.INFO))
            self._threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._logger.setLevel(self._before)


quiet_py4j = _Level().raised
