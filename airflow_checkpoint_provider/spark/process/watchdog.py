"""A thread that notices SIGTERM and the death of the JVM, even if the main thread is blocked. Runs in the Spark driver.

A Python driver outlives its JVM and does not notice until its next Spark call. A signal handler must not raise: inside a py4j
call that breaks the connection. So one poll waits for both: for a pidfd, and for a pipe into which the handler writes a byte.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Self

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.java_classes import java_class
from airflow_checkpoint_provider.spark.process.exits import leave

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Callback = Callable[[], object]
STOP, SIGTERM = b"s", b"t"


def jvm_pid(spark: SparkSession) -> int:
    """Return the process id of the session's JVM."""
    return int(java_class(spark, "java.lang.ProcessHandle").current().pid())


def check_watchable(pid: int) -> None:
    """Raise ``WrongUse`` on a system without pidfds (Linux before 5.3, anything else), before an attempt begins."""
    os.close(_pidfd(pid))


class Watchdog:
    """Watches from ``start`` to ``stop``. Callbacks run in its thread, one at a time.

    After ``on_sigterm`` the watch goes on. Nothing goes on without the JVM: after ``on_jvm_death`` the process ends with
    ``ExitCode.FAILED``, if the callback did not end it. SIGTERM is caught only if ``start`` is called in the main thread.
    """

    def __init__(self, jvm: int, on_jvm_death: Callback, on_sigterm: Callback) -> None:
        self._jvm_pid, self._on_jvm_death, self._on_sigterm = jvm, on_jvm_death, on_sigterm
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> Self:
        """Begin to watch."""
        self._jvm_fd = _pidfd(self._jvm_pid)
        self._read_end, self._write_end = os.pipe()
        self._owner = os.getpid()
        self._catches = threading.current_thread() is threading.main_thread()
        if self._catches:
            self._handler_before = signal.signal(signal.SIGTERM, self._handle) or signal.SIG_DFL
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the watch and restore the handler of SIGTERM. Do not call it from a callback."""
        if self._catches:
            signal.signal(signal.SIGTERM, self._handler_before)
        os.write(self._write_end, STOP)
        self._thread.join()
        for fd in (self._write_end, self._read_end, self._jvm_fd):
            os.close(fd)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._owner:
            os.write(self._write_end, SIGTERM)
        else:  # a fork of this process has our handler and our pipe, but the signal is for the fork alone
            signal.signal(number, self._handler_before)
            os.kill(os.getpid(), number)

    def _watch(self) -> None:
        poll = select.poll()
        for fd in (self._read_end, self._jvm_fd):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._jvm_fd:
                    self._without_jvm()
                elif os.read(fd, 1) == STOP:
                    return
                else:
                    _call(self._on_sigterm)

    def _without_jvm(self) -> None:
        _call(self._on_jvm_death)
        leave(ExitCode.FAILED, f"the JVM of this driver (pid {self._jvm_pid}) is gone; the driver ends with it")


def _pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends, at once if it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        read_end, write_end = os.pipe()
        os.close(write_end)
        return read_end
    except (AttributeError, OSError) as error:
        raise WrongUse(
            f"process {pid} cannot be watched ({error}). A checkpointed driver needs Linux 5.3 or newer"
        ) from error


def _call(callback: Callback) -> None:
    """Call ``callback``. Print its error, and go on: the watch is still needed."""
    try:
        callback()
    except Exception:  # noqa: BLE001 - after any error the JVM can still die
        with contextlib.suppress(Exception):
            traceback.print_exc()
