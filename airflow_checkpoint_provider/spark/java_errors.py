"""Errors of the JVM, as PySpark raises them. Runs in the Spark driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

JAVA_ERRORS = (Py4JJavaError, PySparkException)
"""What a call of the JVM may raise: PySpark has errors of its own for some, such as ``AnalysisException`` and ``IllegalArgumentException``."""


def java_name(error: Exception) -> str:
    """Return the name of the class of an error, which is Java's also where PySpark has one of its own."""
    return (
        str(error.java_exception.getClass().getSimpleName())
        if isinstance(error, Py4JJavaError)
        else type(error).__name__
    )


def java_reason(error: Exception) -> str:
    """Return the first line of the text of an error; it may be empty, or hold the address of a database."""
    text = str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)
    return text.partition("\n")[0]


def texts_of(error: BaseException | None) -> Iterator[str]:
    """Yield the texts of an error and of those that led to it. PySpark's own have the JVM's stack trace beside their text."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        with contextlib.suppress(Exception):  # the text of a JVM's error is asked from the JVM, which may be gone
            yield str(error)
        yield str(getattr(error, "_stackTrace", None) or "")
        error = error.__cause__ or error.__context__
