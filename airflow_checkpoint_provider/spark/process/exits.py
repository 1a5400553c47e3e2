"""End the driver's process from any thread, or by the code of its error. Runs in the Spark driver."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from types import TracebackType
from typing import NoReturn

from airflow_checkpoint_provider.spark.process.log import marked

PRINT_TIMEOUT = 5.0  # seconds; a thread that holds a stream's lock may be stuck


def leave(code: int, line: str) -> NoReturn:
    """End the process now, from any thread, even if the main thread is blocked. ``line`` is the last line printed."""
    printer = threading.Thread(target=_print_last, args=(line,), daemon=True)
    printer.start()
    printer.join(PRINT_TIMEOUT)
    os._exit(code)


def exit_by(error: BaseException, code: int) -> None:
    """Let the process exit with ``code`` if ``error`` leaves the script: Python itself would exit with 1. A script may still catch it."""
    print_error = sys.excepthook

    def end(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        print_error(kind, raised, trace)
        if raised is error:
            raise SystemExit(code)  # Python ends with this code

    sys.excepthook = end


def _print_last(line: str) -> None:
    for handler in logging.getLogger().handlers:
        with contextlib.suppress(Exception):
            handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # under spark-submit both are pipes to a JVM that may be gone
            if stream is sys.stderr:
                print(marked(line.splitlines()), file=stream)
            stream.flush()
