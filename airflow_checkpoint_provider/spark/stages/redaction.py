"""What the session hides in the texts that Spark shows: the same is hidden in what is stored and printed. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Hide = Callable[[str], str]

HIDDEN = "*********(redacted)"
"""What Spark writes in place of what it hides."""
SECRETS = "(?i)secret|password|token|access[.]?key"
"""What Spark takes for the name of a secret if the site does not say it."""


def redaction(spark: SparkSession) -> Hide:
    """Return what hides the parts of a text that ``spark.sql.redaction.string.regex`` or ``spark.redaction.string.regex`` matches."""
    pattern = spark._jsparkSession.sessionState().conf().stringRedactionPattern()
    if pattern.isEmpty():
        return lambda text: text
    return lambda text: str(spark._jvm.org.apache.spark.util.Utils.redact(pattern, text))  # type: ignore[union-attr]


def is_secret(spark: SparkSession) -> Callable[[str], bool]:
    """Return whether ``spark.redaction.regex`` matches the name or the value of a conf."""
    regex = spark.sparkContext._conf.get("spark.redaction.regex", SECRETS)
    pattern = spark._jvm.java.util.regex.Pattern.compile(regex)  # type: ignore[union-attr]  # Java's own dialect
    return lambda text: bool(pattern.matcher(text).find())
