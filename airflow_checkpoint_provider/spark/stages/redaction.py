"""The redaction of Spark's session: stored and printed texts hide the same parts as Spark's own. Runs in the Spark driver."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.spark.java_classes import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Hide = Callable[[str], str]

HIDDEN = "*********(redacted)"
"""The text that Spark writes in place of a hidden one."""
SECRETS = "(?i)secret|password|token|access[.]?key|credential|(access|account|api|private|shared)[._-]?key"
"""Spark's default pattern for the names of secrets since 4.3, and keys as catalogs and clouds write them: ``s3.access-key-id``."""
_SECRETS = re.compile(SECRETS, re.ASCII)  # as Java ignores case


def redaction(spark: SparkSession) -> Hide:
    """Return a function that hides the matches of ``spark.sql.redaction.string.regex`` or ``spark.redaction.string.regex``."""
    pattern = spark._jsparkSession.sessionState().conf().stringRedactionPattern()
    if pattern.isEmpty():
        return lambda text: text
    utils = java_class(spark, "org.apache.spark.util.Utils")
    return lambda text: str(utils.redact(pattern, text))


def is_secret(spark: SparkSession) -> Callable[[str], bool]:
    """Return a function: whether ``spark.redaction.regex`` matches the name or the value of a conf."""
    regex = spark.sparkContext._conf.get("spark.redaction.regex", SECRETS)
    if regex == SECRETS:  # without a question to the JVM for each text
        return lambda text: bool(_SECRETS.search(text))
    pattern = java_class(spark, "java.util.regex.Pattern").compile(regex)  # Java's own dialect
    return lambda text: bool(pattern.matcher(text).find())
