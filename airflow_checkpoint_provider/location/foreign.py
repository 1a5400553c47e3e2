"""What Spark, Delta, Iceberg or anybody else has written: it is read, or refused by one typed error. Runs anywhere.

Whoever writes there may write anything: a number of a million digits, a list of lists of lists, text that is none. Whatever a parser
makes of that, its caller gets ``Damaged``, which names the file.
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
    """Raise ``Damaged`` for whatever goes wrong while ``what`` is parsed in this block, but for an error of this package."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - hostile bytes find an error in each parser
        why = cut(f"{type(error).__name__}: {error}")
        raise Damaged(
            f"{what} is not what {writer} writes ({why}); somebody or something changed it, or the disk lost its end. Bring it back from a"
            " backup, or start from a checkpoint"
        ) from None


def loads(text: str | bytes, deepest: int = DEEPEST) -> Any:
    """Return what JSON says. Raises ``ValueError`` and ``RecursionError``, also for lists and objects that lie too deep in each other:
    parsing or writing them again in another place might fail.
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
        raise ValueError("a number is greater than Spark writes any")
    return number
