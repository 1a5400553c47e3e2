"""Errors of the JVM, as PySpark raises them. Runs in the Spark driver."""

from __future__ import annotations

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
