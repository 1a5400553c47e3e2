"""Reads files that Spark, Delta, Iceberg or anybody else has written, or refuses them by one typed error. Runs anywhere.

Such a file may hold anything: a number of a million digits, a list of lists of lists, bytes that are no text. Whatever error a parser
raises, its caller gets ``Damaged``, which names the file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from airflow_checkpoint_provider.errors import CheckpointError, Damaged
from airflow_checkpoint_provider.protocol.records import DEEPEST, cut, refuse_deep

NUMBER = "[0-9]{1,18}"  # a pattern of a number in the name of a file, which Spark keeps as a long
LONG = 2**63  # the JVM counts below it
HEADER = "v1"
"""The first line of each file in Spark's logs: of offsets, of file sources, of file sinks."""


@contextlib.contextmanager
def readable(what: str, writer: str = "Spark") -> Iterator[None]:
    """Raise ``Damaged`` for any error while this block parses ``what``. Errors of this package pass unchanged."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - a parser may raise any error for hostile bytes
        why = cut(f"{type(error).__name__}: {error}")
        raise Damaged(
            f"{what} is not what {writer} writes ({why}); somebody or something changed it, or the disk lost its last bytes. Bring it back from a"
            " backup, or start from a checkpoint"
        ) from None


def loads(text: str | bytes, deepest: int = DEEPEST) -> Any:
    """Return the value of a JSON text. Raises ``ValueError`` and ``RecursionError``, also for lists and objects that are nested too deep:
    parsing or writing them again elsewhere might fail.
    """
    data = json.loads(text)
    refuse_deep(data, deepest)
    return data


def logged_lines(text: str) -> list[str]:
    """Return the lines of a file in one of Spark's logs. Raises ``ValueError`` for another version of the log."""
    version, *lines = text.split("\n")
    if version != HEADER:
        raise ValueError(f"its version is {version[:20]!r}")
    return lines


def long(value: Any) -> int:
    """Return a whole number as the JVM keeps it. Raises ``ValueError``, ``TypeError`` and ``OverflowError`` for any other value."""
    number = int(value)
    if not -LONG <= number < LONG:
        raise ValueError("a number is too large for Spark")
    return number
