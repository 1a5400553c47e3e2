"""The session confs of Spark that change results, and how to set a conf for a moment. Runs in the Spark driver."""

from __future__ import annotations

import functools
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pyspark.errors.exceptions.captured import SparkNoSuchElementException

from airflow_checkpoint_provider.spark.stages.leaves import mapping
from airflow_checkpoint_provider.spark.stages.redaction import HIDDEN, is_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT_CHANGING = (
    "spark.files.ignoreCorruptFiles",
    "spark.files.ignoreMissingFiles",
    "spark.sql.analyzer.lowerEmptyGroupingSetToGlobalAggregate.enabled",
    "spark.sql.analyzer.preferColumnOverLcaInArrayIndex",
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.ansi.enabled",
    "spark.sql.ansi.relationPrecedence",
    "spark.sql.avro.datetimeRebaseModeInRead",
    "spark.sql.caseSensitive",
    "spark.sql.chunkBase64String.enabled",
    "spark.sql.columnNameOfCorruptRecord",
    "spark.sql.csv.parser.columnPruning.enabled",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.defaultCatalog",
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.execution.pandas.inferPandasDictAsMap",
    "spark.sql.execution.pandas.structHandlingMode",
    "spark.sql.execution.pyspark.binaryAsBytes",
    "spark.sql.execution.pythonUDF.arrow.enabled",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "spark.sql.experimental.optimizer.transpilePyUDFs",
    "spark.sql.extensions",
    "spark.sql.files.archive.reader.enabled",
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreInvalidPartitionPaths",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.files.ignoredPathSegmentRegex",
    "spark.sql.function.concatBinaryAsString",
    "spark.sql.function.eltOutputAsString",
    "spark.sql.functionResolution.sessionOrder",
    "spark.sql.hive.caseSensitiveInferenceMode",
    "spark.sql.hive.convertMetastoreOrc",
    "spark.sql.hive.convertMetastoreParquet",
    "spark.sql.hive.manageFilesourcePartitions",
    "spark.sql.hive.verifyPartitionPath",
    "spark.sql.icu.caseMappings.enabled",
    "spark.sql.json.enableExactStringParsing",
    "spark.sql.json.enablePartialResults",
    "spark.sql.jsonGenerator.ignoreNullFields",
    "spark.sql.lateralColumnAlias.enableImplicitResolution",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.mapZipWithUsesJavaCollections",
    "spark.sql.optimizer.insertMapSortInDistinctAggregates.enabled",
    "spark.sql.optimizer.metadataOnly",
    "spark.sql.orc.mergeSchema",
    "spark.sql.orderByOrdinal",
    "spark.sql.parquet.binaryAsString",
    "spark.sql.parquet.datetimeRebaseModeInRead",
    "spark.sql.parquet.fieldId.read.enabled",
    "spark.sql.parquet.fieldId.read.ignoreMissing",
    "spark.sql.parquet.ignoreVariantAnnotation",
    "spark.sql.parquet.inferTimestampNTZ.enabled",
    "spark.sql.parquet.int96AsTimestamp",
    "spark.sql.parquet.int96RebaseModeInRead",
    "spark.sql.parquet.int96TimestampConversion",
    "spark.sql.parquet.mergeSchema",
    "spark.sql.parquet.reader.respectUnknownTypeAnnotation.enabled",
    "spark.sql.parser.escapedStringLiterals",
    "spark.sql.parser.quotedRegexColumnNames",
    "spark.sql.preserveCharVarcharTypeInfo",
    "spark.sql.pyspark.inferNestedDictAsStruct.enabled",
    "spark.sql.readSideCharPadding",
    "spark.sql.retainGroupColumns",
    "spark.sql.selfJoinAutoResolveAmbiguity",
    "spark.sql.session.timeZone",
    "spark.sql.sources.default",
    "spark.sql.sources.partitionColumnTypeInference.enabled",
    "spark.sql.sources.validatePartitionColumns",
    "spark.sql.timestampType",
    "spark.sql.variable.substitute",
    "spark.sql.variant.allowDuplicateKeys",
    "spark.sql.variant.validateUnicodeInJsonParsing",
    "spark.sql.xml.variant.respectInferSchema",
)
"""The rows of a plan differ between two values of each of these confs, or one value loses data where the other raises an error."""
GROUPS = re.compile(r"spark\.sql\.(catalog\.|.*legacy)", re.IGNORECASE)
"""All confs of these names count if they are set: Spark's older behaviours, and where the tables of a catalog lie."""
HADOOP = (
    "avro.mapred.ignore.inputs.without.extension",
    "fs.defaultFS",
    "hive.metastore.uris",
    "mapred.input.pathFilter.class",
    "mapreduce.input.fileinputformat.input.dir.recursive",
    "mapreduce.input.linerecordreader.line.maxlength",
    "mapreduce.input.pathFilter.class",
    "orc.force.positional.evolution",
    "textinputformat.record.delimiter",
)
"""The names in Hadoop's configuration that decide which files, lines and columns are read."""

# One a conf: two threads inside ``overridden`` would restore each other's values
_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)


def result_changing(spark: SparkSession) -> dict[str, str]:
    """Return the confs that change the rows of a plan, with their current values.

    Confs that this release of Spark does not know are left out. So are keys and passwords: they may differ in each attempt.
    """
    given = _given(spark)
    secret = is_secret(spark)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    values = {
        **{name: given[name] if name in given else _default(spark, name) for name in RESULT_CHANGING},
        **{name: value for name, value in given.items() if GROUPS.match(name) and not secret(name)},
        **{f"spark.hadoop.{name}": given.get(name, hadoop.get(name)) for name in HADOOP},
    }
    return {name: value for name, value in values.items() if value is not None}


def redacted_confs(spark: SparkSession, confs: Mapping[str, str]) -> dict[str, str]:
    """Return ``confs`` with the values hidden that Spark hides in its own pages, by ``spark.redaction.regex``."""
    secret = is_secret(spark)
    return {name: HIDDEN if secret(value) else value for name, value in confs.items()}


def _given(spark: SparkSession) -> dict[str, str]:
    """Return the confs that the session, the command line and the cluster have set."""
    return mapping(spark._jsparkSession.sessionState().conf().getAllConfs())


@functools.cache
def _default(spark: SparkSession, name: str) -> str | None:
    """Return the value of a conf that is not set; None if Spark does not know it."""
    try:
        return spark.conf.get(name)
    except SparkNoSuchElementException:
        return None


@contextmanager
def overridden(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set session confs for the length of a ``with``, and restore the user's settings afterwards."""
    with ExitStack() as held:
        for name in sorted(values):  # in one order: else two threads could wait for each other
            held.enter_context(_locks[name])
        before = {name: spark.conf.get(name, None) for name in values}
        try:
            for name, value in values.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)
