"""Our lines in the driver's log, which in client mode is the task's log. Runs in the Spark driver."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

from airflow_checkpoint_provider.errors import printable


def say(lines: str | Iterable[str]) -> None:
    """Print to the driver's standard output, at once: the process may be killed in the next moment."""
    text = "\n".join(map(printable, [lines] if isinstance(lines, str) else lines))
    # An encoding may lack letters; a stream of the script's own may have no encoding.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError):  # the reader may be gone; the job goes on
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
