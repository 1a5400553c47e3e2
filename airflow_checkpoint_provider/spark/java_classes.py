"""The classes of Java and Scala that the driver calls. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return the class of this full name, such as ``org.apache.hadoop.fs.Path``.

    Py4J asks the JVM for each part of ``spark._jvm.org.apache.hadoop.fs.Path``, and for each package the JVM looks into all jars for a class of
    that name. The full name is one question, and its class is found at once.
    """
    return getattr(spark._jvm, name)


def hadoop_path(spark: SparkSession, *parts: Any) -> Any:
    """Return Hadoop's path of a text, of a URI, or of a folder and a name."""
    return java_class(spark, "org.apache.hadoop.fs.Path")(*parts)


def path_of_uri(spark: SparkSession, uri: str) -> Any:
    """Return Hadoop's path of a URI whose special letters are encoded."""
    return hadoop_path(spark, java_class(spark, "java.net.URI")(uri))


def read_text(spark: SparkSession, stream: Any) -> str:
    """Return the rest of an input stream of Java's, which holds UTF-8."""
    return str(java_class(spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))


def scala_none(spark: SparkSession) -> Any:
    """Return the option that holds nothing."""
    return java_class(spark, "scala.Option").empty()


def scala_seq(spark: SparkSession, items: Iterable[Any]) -> Any:
    """Return a sequence of Scala's."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(list(items))


def scala_items(sequence: Any) -> list[Any]:
    """Return the items of a sequence of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]


def scala_map(spark: SparkSession, items: Mapping[str, str]) -> Any:
    """Return a map of Scala's."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toScalaMap(dict(items))


def scala_pairs(scala_map: Any) -> list[tuple[str, str]]:
    """Return names and values of a map of Scala's."""
    return [(str(pair._1()), str(pair._2())) for pair in scala_items(scala_map.toList())]


def frame_of(spark: SparkSession, plan: Any) -> Any:
    """Return the frame of a logical plan, as the object of Spark's that PySpark wraps."""
    return java_class(spark, "org.apache.spark.sql.classic.Dataset").ofRows(spark._jsparkSession, plan)


def dataframe_of(spark: SparkSession, java_frame: Any) -> DataFrame:
    """Return PySpark's DataFrame of a frame of Spark's."""
    from pyspark.sql.classic.dataframe import DataFrame

    return DataFrame(java_frame, spark)


def await_future(spark: SparkSession, future: Any, seconds: int) -> None:
    """Wait until a future of Scala's has ended. Raises ``Py4JJavaError`` after ``seconds``."""
    duration = java_class(spark, "scala.concurrent.duration.Duration").apply(seconds, "s")
    java_class(spark, "scala.concurrent.Await").ready(future, duration)
