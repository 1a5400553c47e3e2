"""Our lines in the driver's log, which in client mode is the task's log. Runs in the Spark driver."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol.handover import LINE_MARK

CLEARED = "\r\x1b[K"


def say(lines: str | Iterable[str]) -> None:
    """Print to the driver's standard output, at once: the process may be killed in the next moment."""
    text = marked([lines] if isinstance(lines, str) else lines)
    # An encoding may lack letters; a stream of the script's own may have no encoding.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError):  # the reader may be gone; the job goes on
        print(_line_begin() + text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _line_begin() -> str:
    """Return the characters that clear the line of a terminal: Spark's progress bar may stand there. It is drawn again below."""
    return CLEARED if getattr(sys.stdout, "isatty", bool)() else ""


def marked(lines: Iterable[str]) -> str:
    """Return the text to print. In client mode each line has a mark, by which the task tells it from Spark's lines."""
    mark = os.environ.get(LINE_MARK, "")
    return "\n".join(mark + printable(line) for line in lines)
