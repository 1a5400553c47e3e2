"""The fingerprint of a DataFrame's plan: equal in every driver that builds the same plan. Runs in the Spark driver.

Spark's own ``semanticHash()`` and plan strings differ from driver to driver, or miss changes. This text holds the analysed plan twice: with
its ids numbered from 0, which shows which column goes where; and with all ids 0, which keeps literals that look like ids. The schema and
the confs that change results follow. Beside the text stand the inputs of the leaves: paths, options, local rows. The text does not show
Python functions, RDDs and the rows of ``createDataFrame``; flags say that they are there. Seeds and names that Spark or a library draws are
numbered, too. Spark's canonical plan is not used: it orders operands by hash codes that change with the JVM.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.protocol.records import Record, added, canonical
from airflow_checkpoint_provider.spark.java_classes import java_class
from airflow_checkpoint_provider.spark.stages.captured import Captured, captured
from airflow_checkpoint_provider.spark.stages.confs import overridden, redacted_confs, result_changing
from airflow_checkpoint_provider.spark.stages.draws import Drawn, without_draws
from airflow_checkpoint_provider.spark.stages.leaves import ROWS, Leaves, Readbacks, computed_columns
from airflow_checkpoint_provider.spark.stages.partitions import checkpointed, partition_facts
from airflow_checkpoint_provider.spark.stages.redaction import Hide, redaction
from airflow_checkpoint_provider.spark.stages.schemas import schema_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNCUT = {  # by default plan texts are cut, and two plans that differ after the cut would look the same
    "spark.sql.debug.maxToStringFields": str(2**31 - 1),
    "spark.sql.maxPlanStringLength": str(2**31 - 16),
}
TREE = " :+-"  # the letters before a node's name
NODE = rf"^[{TREE}]*[!']?"  # the beginning of a node's line: the same words in a literal are no node
NUMBERED = re.compile(r"(#|\b[xyz]_|CTERelation(?:Def|Ref) |UnionLoop(?:Ref)? )(\d+)")
NUMBERED_NAMES = (
    re.compile(rf"({NODE}(?:CTERelation(?:Def|Ref)|UnionLoop(?:Ref)?) )(\d+)", re.MULTILINE),
    re.compile(r"(lambda [xyz]_)(\d+)(?=#)"),
)
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
SCRUBBED = (
    re.compile(rf"({NODE}Range \(.*splits=)\S+(?=\)$)", re.MULTILINE),  # the number of cores
    re.compile(rf"({NODE}CollectMetrics .*\], )\d+$", re.MULTILINE),
    re.compile(rf"({NODE}CollectMetrics ){UUID}", re.MULTILINE),  # an Observation without a name
    re.compile(rf"({NODE}Generate .*\)#)\d+(?=\w*, (?:true|false), )", re.MULTILINE),
    re.compile(r"(@)[0-9a-f]+(?=, \d+, \d+, (?:Some\(|None))"),  # Java's identity of a user's aggregate function
)
DRAWN_NAME = re.compile(r"\b[A-Z]\w*?_[0-9a-f]{12}(?![0-9a-f])")  # a uid of pyspark.ml
TEMPORARY_VIEW = re.compile(rf"({NODE}View \((?:`global_temp`\.)?`)([^`]+)`,", re.MULTILINE)
VIEW_NAME = re.compile(
    rf"({NODE}(?:SubqueryAlias (?:global_temp\.)?|View \((?:`global_temp`\.)?`))([^\s`]+)", re.MULTILINE
)
CODE_PATTERNS = ("PYTHON_UDF", "SCALA_UDF", "PYTHON_DATA_SOURCE", "EVAL_PYTHON_UDTF")
CODE_NODES = re.compile(
    r"^[ :+-]*(\w*(InPandas|InArrow|InR|Python|MapElements|MapPartitions|MapGroups|CoGroup|AppendColumns|TypedFilter|LogicalRDD"
    r"|ExternalRDD|ScriptTransformation)"
    r"|Generate .*\)#[\d_]+\w*, (true|false), )",  # a Python table function is the one generator with an id of its own
    re.MULTILINE,
)
CODE_CALLS = re.compile(
    r"\b(?:(?:try_)?reflect|java_method)\(|\bHive\w+UDT?F#|\bHiveFunctionWrapper\(|@_, \d+, \d+, (?:Some\(|None)"
)
PROGRAM = re.compile(rf"{NODE}ScriptTransformation ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """The identity of one plan. ``text`` holds literals, maybe personal data: it is stored beside the rows, nowhere else.

    ``text`` and ``leaves`` are without the parts that the session's redaction hides. The digests are of the whole texts.
    """

    digest: str
    read: str
    """A digest of the leaves' inputs: paths, options, rows of the driver, file sets of this job's stages."""
    text: str
    leaves: tuple[dict[str, Any], ...]
    python: bool
    """Python or other code that no text shows: UDFs, ``mapInPandas``, RDDs, programs, sources of the job."""
    local_rows: bool
    """Rows that the driver holds: ``createDataFrame``, ``VALUES``, the result of a command."""
    inputs: tuple[str, ...]
    """Uids of the stages of this job that it reads."""
    sorted: bool
    """The plan sorts, and the order reaches the result. A stage does not keep it."""
    draws: tuple[int, ...] = field(default=(), compare=False)
    """The seeds that Spark has drawn for this frame, in the order in which the text names them first."""
    partitions: dict[str, str] = field(default_factory=dict, compare=False)
    """The facts that made its partitions, if its rows depend on them; else empty."""
    checkpointed: tuple[int, ...] = field(default=(), compare=False)
    """Ids of the RDDs that hold frames which Spark has checkpointed."""
    drawn_columns: tuple[str, ...] = field(default=(), compare=False)
    """Columns of the result whose names a library has drawn."""
    unseen: tuple[str, ...] = added(factory=tuple)
    """What its rows are made by, and neither the plan nor the application holds."""
    captured: dict[str, str] = added(factory=dict)
    """Digests of the plain values that its Python functions have captured, by name."""

    def redacted(self, hide: Hide) -> Plan:
        """Return the plan with its text hidden part by part: a greedy pattern leaves the parts in their places."""
        head, _, trees = self.text.partition("\nanalysed\n")
        analysed, _, exact = trees.partition("\nexact\n")
        schema, *confs = head.split("\n")
        fields = json.dumps(_each_text(json.loads(schema.removeprefix("schema ")), hide))
        text = "\n".join([f"schema {fields}", *map(hide, confs), "analysed", hide(analysed), "exact", hide(exact)])
        return replace(self, text=text, leaves=tuple(_each_text(list(self.leaves), hide)))


def fingerprint(df: DataFrame, readbacks: Readbacks) -> Plan:
    """Return the identity of ``df``'s plan. Starts no job; takes about 20 ms."""
    execution = df._jdf.queryExecution()
    with overridden(df.sparkSession, UNCUT):
        plan = execution.commandExecuted()
        normalized = java_class(df.sparkSession, "org.apache.spark.sql.catalyst.plans.NormalizePlan")
        without_ids = normalized.normalizeExprIds(plan)
        version = df.sparkSession.version
        tree, tree_without_ids = tree_text(plan, version), tree_text(without_ids, version)
    drawn = Drawn(df.sparkSession).numbers(tree)
    drawn_name = _drawn_name(plan, tree)
    analysed, exact = (
        _numbered(without_draws(text, drawn), patterns, drawn_name)
        for text, patterns in ((tree, (NUMBERED,)), (tree_without_ids, NUMBERED_NAMES))
    )
    leaves = tuple(Leaves(df.sparkSession, readbacks).all(plan))
    confs = result_changing(df.sparkSession)
    trees = ["analysed", analysed, "exact", exact]
    held = captured(df.sparkSession, plan) if _has(df, plan, "PYTHON_UDF") else Captured()
    schema, shown = f"schema {schema_json(df)}", redacted_confs(df.sparkSession, confs)
    plan_as_built = Plan(
        digest=hashlib.sha256(canonical([schema, confs, trees, leaves, held.values])).hexdigest(),
        read=hashlib.sha256(canonical(list(leaves))).hexdigest(),
        text="\n".join([schema, *(f"conf {name}={value}" for name, value in shown.items()), *trees]),
        leaves=leaves,
        python=_has(df, plan, *CODE_PATTERNS)
        or bool(CODE_NODES.search(analysed))
        or bool(CODE_CALLS.search(analysed))
        or any("code" in leaf for leaf in leaves),
        local_rows=any(leaf["leaf"] in (*ROWS, "LogicalRDD") for leaf in leaves),
        inputs=tuple(sorted({leaf["uid"] for leaf in leaves if leaf["leaf"] == "stage"})),
        sorted=_has(df, plan, "SORT") and execution.sparkPlan().outputOrdering().nonEmpty(),
        draws=tuple(drawn),
        partitions=partition_facts(df, plan, analysed),
        checkpointed=checkpointed(plan),
        drawn_columns=tuple(_drawn_columns(df, drawn)),
        unseen=(*(["the program of TRANSFORM"] if PROGRAM.search(analysed) else ()), *held.objects),
        captured=held.values,
    )
    return plan_as_built.redacted(redaction(df.sparkSession))


def _each_text(value: Any, hide: Hide) -> Any:
    if isinstance(value, dict):
        return {name: _each_text(held, hide) for name, held in value.items()}
    if isinstance(value, list):
        return [_each_text(held, hide) for held in value]
    return hide(value) if isinstance(value, str) else value


def tree_text(plan: Any, version: str) -> str:
    """Return the text of a plan. Call it with the confs of ``UNCUT``."""
    # Verbose, no suffix, all fields, no operator ids and, since Spark 4.1, no output columns
    since_4_1 = () if version.startswith("4.0.") else (False,)
    text: str = plan.treeString(True, False, 2**31 - 1, False, *since_4_1)
    return text


def _drawn_columns(df: DataFrame, drawn: Mapping[int, int]) -> Iterator[str]:
    for name in df.columns:
        if DRAWN_NAME.search(name) or without_draws(name, drawn) != name:
            yield name


def _drawn_name(plan: Any, tree: str) -> re.Pattern[str]:
    """Return a pattern for the columns that the plan computes and a library has named. The names that a source reads count."""
    found = filter(DRAWN_NAME.search, computed_columns(plan)) if DRAWN_NAME.search(tree) else ()
    longest_first = sorted(set(found), key=lambda name: (-len(name), name))
    # A literal may look like such a name, but no id follows it
    return re.compile(rf"(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})(?=#\d)")


def _numbered(text: str, numbered: Iterable[re.Pattern[str]], drawn_name: re.Pattern[str]) -> str:
    """Return ``text`` with numbers in the places of ids, and of names that change no row and are drawn anew by each driver."""
    seen: dict[tuple[str, str], int] = {}

    def number(kind: str, name: str) -> str:
        return str(seen.setdefault((kind, name), len(seen)))

    for pattern in numbered:
        text = pattern.sub(lambda match: match[1] + number(match[1].lstrip(TREE)[:3], match[2]), text)
    views = {view for _, view in TEMPORARY_VIEW.findall(text)}
    text = VIEW_NAME.sub(
        lambda match: f"{match[1]}view {number('view', match[2])}" if match[2] in views else match[0], text
    )
    text = drawn_name.sub(lambda match: f"name {number('name', match[0])}", text)
    for pattern in SCRUBBED:
        text = pattern.sub(r"\1_", text)
    return text.rstrip()


def _has(df: DataFrame, plan: Any, *patterns: str) -> bool:
    tree_pattern = java_class(df.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern")
    return any(plan.containsPattern(getattr(tree_pattern, pattern)()) for pattern in patterns)
