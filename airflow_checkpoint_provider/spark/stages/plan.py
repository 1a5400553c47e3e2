"""The fingerprint of a DataFrame's plan: equal in every driver that builds the same plan. Runs in the Spark driver.

Spark's own ``semanticHash()`` and plan strings differ from driver to driver, or miss changes. This text holds the analysed
plan twice: with its ids numbered from 0, which shows which column goes where; and with all ids 0, which keeps literals that
look like ids. The schema and the confs that change results follow. Beside the text stands what the leaves read: paths,
options, local rows. The text does not show Python functions, RDDs and the rows of ``createDataFrame``; flags say that they
are there. Spark's canonical plan is not used: it orders operands by hash codes that change with the JVM.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.protocol.records import Record, canonical
from airflow_checkpoint_provider.spark.stages.confs import overridden, result_changing
from airflow_checkpoint_provider.spark.stages.leaves import ROWS, Leaves, Readbacks
from airflow_checkpoint_provider.spark.stages.schemas import schema_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNCUT = {  # by default plan texts are cut, and two plans that differ behind the cut would look the same
    "spark.sql.debug.maxToStringFields": str(2**31 - 1),
    "spark.sql.maxPlanStringLength": str(2**31 - 16),
}
NUMBERED = re.compile(r"(#|\b[xyz]_|CTERelation(?:Def|Ref) |UnionLoop(?:Ref)? )(\d+)")
NUMBERED_NAMES = re.compile(r"(lambda [xyz]_|CTERelation(?:Def|Ref) |UnionLoop(?:Ref)? )(\d+)")
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
SCRUBBED = (
    (re.compile(r"(Range \(.*splits=)(Some\()?\d+\)?"), r"\1_"),  # the number of cores
    (re.compile(r"\b(rand|randn)\(-?\d{12,}\)"), r"\1(_)"),  # seeds that Spark drew; a seed in the script is shorter
    (re.compile(r"Some\(-?\d{12,}\)"), "Some(_)"),  # uuid, shuffle
    (re.compile(r"\b(uniform\([^,]+, [^,]+|randstr\([^,]+), -?\d{12,}"), r"\1, _"),
    (re.compile(r"(Sample [-\d.E]+, [-\d.E]+, \w+, )-?\d{12,}"), r"\1_"),
    (re.compile(r"(CollectMetrics .*\], )\d+$", re.MULTILINE), r"\1_"),
    (re.compile(rf"(CollectMetrics ){UUID}"), r"\1_"),  # an Observation without a name
    (re.compile(r"(Generate .*\)#)\d+"), r"\1_"),
)
CODE_PATTERNS = ("PYTHON_UDF", "SCALA_UDF", "PYTHON_DATA_SOURCE", "EVAL_PYTHON_UDTF")
CODE_NODES = re.compile(
    r"^[ :+-]*(\w*(InPandas|InArrow|InR|Python|MapElements|MapPartitions|MapGroups|CoGroup|AppendColumns|TypedFilter|LogicalRDD"
    r"|ExternalRDD)|Generate .*\)#[\d_]+\w*, (true|false), )",  # a Python table function is the one generator with an id of its own
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """The identity of one plan. ``text`` holds literals, maybe personal data: it is stored beside the rows, nowhere else."""

    digest: str
    text: str
    leaves: tuple[dict[str, Any], ...]
    python: bool
    """Python or other code that no text shows: UDFs, ``mapInPandas``, RDDs."""
    local_rows: bool
    """Rows that the driver holds: ``createDataFrame``, ``VALUES``, the result of a command."""
    inputs: tuple[str, ...]
    """Uids of the stages of this job that it reads."""
    sorted: bool
    """The plan sorts, and the order reaches the result. A stage does not keep it."""

    @property
    def read(self) -> str:
        """Return a digest of what the leaves read: paths, options, rows of the driver, file sets of this job's stages."""
        return hashlib.sha256(canonical(list(self.leaves))).hexdigest()


def fingerprint(df: DataFrame, readbacks: Readbacks) -> Plan:
    """Return the identity of ``df``'s plan. Starts no job; takes about 20 ms."""
    execution = df._jdf.queryExecution()
    with overridden(df.sparkSession, UNCUT):
        plan = execution.commandExecuted()
        without_ids = _jvm(df).org.apache.spark.sql.catalyst.plans.NormalizePlan.normalizeExprIds(plan)
        version = df.sparkSession.version
        analysed, exact = _text(plan, version, NUMBERED), _text(without_ids, version, NUMBERED_NAMES)
    leaves = tuple(Leaves(_jvm(df), readbacks).all(plan))
    confs = [f"conf {name}={value}" for name, value in result_changing(df.sparkSession).items()]
    text = "\n".join([f"schema {schema_json(df)}", *confs, "analysed", analysed, "exact", exact])
    return Plan(
        digest=hashlib.sha256(canonical([text, leaves])).hexdigest(),
        text=text,
        leaves=leaves,
        python=_has(df, plan, *CODE_PATTERNS)
        or bool(CODE_NODES.search(analysed))
        or any("python" in leaf for leaf in leaves),
        local_rows=any(leaf["leaf"] in (*ROWS, "LogicalRDD") for leaf in leaves),
        inputs=tuple(sorted({leaf["uid"] for leaf in leaves if leaf["leaf"] == "stage"})),
        sorted=_has(df, plan, "SORT") and execution.sparkPlan().outputOrdering().nonEmpty(),
    )


def _text(plan: Any, version: str, numbered: re.Pattern[str]) -> str:
    # Verbose, no suffix, all fields, no operator ids and, since Spark 4.1, no output columns
    since_4_1 = () if version.startswith("4.0.") else (False,)
    text: str = plan.treeString(True, False, 2**31 - 1, False, *since_4_1)
    seen: dict[tuple[str, str], int] = {}
    text = numbered.sub(lambda match: match[1] + str(seen.setdefault((match[1][:3], match[2]), len(seen))), text)
    for pattern, replacement in SCRUBBED:
        text = pattern.sub(replacement, text)
    return text.rstrip()


def _has(df: DataFrame, plan: Any, *patterns: str) -> bool:
    tree_pattern = _jvm(df).org.apache.spark.sql.catalyst.trees.TreePattern
    return any(plan.containsPattern(getattr(tree_pattern, pattern)()) for pattern in patterns)


def _jvm(df: DataFrame) -> Any:
    return df.sparkSession._jvm
