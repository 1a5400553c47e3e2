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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.protocol.records import Record, canonical
from airflow_checkpoint_provider.spark.stages.confs import overridden, result_changing
from airflow_checkpoint_provider.spark.stages.schemas import schema_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Readbacks = Mapping[str, tuple[str, str]]
"""Directory URI of a file set of this job -> (uid of its stage, path of the file set)."""

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
ROWS = {"LocalRelation": "data", "Transpose": "data", "CommandResult": "rows"}


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
    leaves = tuple(_Leaves(df, readbacks).all(plan))
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


class _Leaves:
    """Describes what the leaves of a plan read, as small JSON objects in the plan's order."""

    def __init__(self, df: DataFrame, readbacks: Readbacks) -> None:
        self.jvm = _jvm(df)
        self.readbacks = {_plain(uri): stage for uri, stage in readbacks.items()}

    def all(self, plan: Any) -> Iterable[dict[str, Any]]:
        below = plan.subqueriesAll()
        for root in (plan, *(below.apply(i) for i in range(below.size()))):
            leaves = root.collectLeaves()
            for i in range(leaves.size()):
                yield self.leaf(leaves.apply(i))

    def leaf(self, node: Any) -> dict[str, Any]:
        name = _class(node)
        if name == "LogicalRelation":
            return self.relation(node.relation())
        if name == "DataSourceV2Relation":
            python = {"python": True} if _class(node.table()) == "PythonTable" else {}
            return {"leaf": name, "table": node.table().name(), **_options(dict(node.options())), **python}
        if name in ROWS:
            return {"leaf": name, "rows": _sha(getattr(node, ROWS[name])().mkString(";"))}
        return {"leaf": name}

    def relation(self, relation: Any) -> dict[str, Any]:
        name = _class(relation)
        if name == "HadoopFsRelation":
            paths = sorted(relation.location().rootPaths().mkString("\n").split("\n"))
            return self.stage(paths) or {
                "leaf": _class(relation.fileFormat()),
                "paths": paths,
                **_options(self.mapping(relation.options())),
            }
        if name == "JDBCRelation":
            parts = [part.toString() for part in relation.parts()]
            return {"leaf": name, **_options(self.mapping(relation.jdbcOptions().parameters()), *parts)}
        return {"leaf": name}  # the tree shows its text

    def stage(self, paths: list[str]) -> dict[str, Any] | None:
        """Return the stage that wrote these files; None if it was none. Its file set counts, not the directory where it lies."""
        stages = {self.readbacks.get(_plain(path.rpartition("/")[0])) for path in paths}
        if len(stages) != 1 or (stage := stages.pop()) is None:
            return None
        return {
            "leaf": "stage",
            "uid": stage[0],
            "file_set": stage[1],
            "files": _sha(*(path.rpartition("/")[2] for path in paths)),
        }

    def mapping(self, scala: Any) -> dict[str, str]:
        return dict(self.jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala))


def _options(options: dict[str, str], *more: str) -> dict[str, Any]:
    """Return the names of a source's options, and one digest of their values, which may be secrets. User and password do not count."""
    shown = {
        name: value for name, value in options.items() if name.lower() not in ("path", "paths", "user", "password")
    }
    values = [f"{name}={value}" for name, value in sorted(shown.items())]
    return {"options": sorted(shown), "values": _sha(*values, *more)} if values or more else {}


def _class(java_object: Any) -> str:
    name: str = java_object.getClass().getSimpleName()
    return name


def _plain(uri: str) -> str:
    """Return the URI in Hadoop's spelling: ``file:///a`` and ``file:/a`` are the same directory."""
    return re.sub("^file:/+", "file:/", uri).rstrip("/")


def _sha(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
