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

    def raise_it(self) -> None:
        with self._lock:
            if not self._threads:
                self._before = self._logger.level
                self._logger.setLevel(max(self._logger.getEffectiveLevel(), logging.INFO))
            self._threads += 1

    def give_it_back(self) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads:
                self._logger.setLevel(self._before)


_level = _Level()


@contextmanager
def quiet_py4j() -> Iterator[None]:
    """Keep secrets out of the log, although a script has set DEBUG for all loggers. Several threads may be inside."""
    _level.raise_it()
    try:
        yield
    finally:
        _level.give_it_back()
