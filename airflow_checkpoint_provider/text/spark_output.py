"""The last lines of Spark's output, which a failed task shows again. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_checkpoint_provider.text.units import headline, labelled, plural

SHOWN = 60  # lines
CODES = {"CKP502": "The driver failed. Its last lines follow once more, and the cause of its last error."}

_TRACEBACK = "Traceback (most recent call last):"
_PYTHON = re.compile(r"[^\W\d][\w.]*(:\s|:?$)")  # the last line of a traceback: `ValueError: no such column`
_JAVA = re.compile(r'Caused by: (.+)|Exception in thread ".*?" (.+)')


def last_lines(lines: Sequence[str]) -> list[str]:
    """Return the last lines of Spark's output, and the cause of the last error in all of ``lines``; nothing for no output."""
    shown, cause = lines[-SHOWN:], cause_in(lines)
    if not shown:
        return []
    head = f"The last {plural(len(shown), 'line')} of Spark's output:"
    return [headline(head, "CKP502"), *shown, *([labelled("last error", cause)] if cause else [])]


def cause_in(lines: Sequence[str]) -> str | None:
    """Return the cause of the last error: the last line of a Python traceback, or Java's last "Caused by". None without an error."""
    cause, in_traceback = None, False
    for line in lines:
        if _TRACEBACK in line:  # also after "Caused by", if a Python worker failed
            in_traceback = True
        elif in_traceback and _PYTHON.match(line):
            cause, in_traceback = line.strip(), False
        elif java := _JAVA.match(line.strip()):
            cause = java[1] or java[2]
    return cause
