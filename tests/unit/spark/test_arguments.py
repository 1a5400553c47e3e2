"""Each public call refuses each wrong kind of argument by name, at the line where it is written. Runs anywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from airflow_checkpoint_provider import checkpoint, spark
from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll, KeepLatest, KeepWithin
from airflow_checkpoint_provider.errors import CheckpointError, InvalidConfig, InvalidName, WrongUse
from airflow_checkpoint_provider.spark import (
    CheckpointedJob,
    FileSink,
    OpenedCheckpoint,
    Query,
    SinkWriter,
    batch_sink,
    open_checkpoint,
    read_sink,
)
from airflow_checkpoint_provider.spark.queries.sinks.batch import BatchSink

UIDS = [3, None, "", " ", True, ["a"], b"a", "a\nb"]
TEXTS = [3, True, ["2"], b"2"]
PATHS = [3, True, ["/data"], Path("s3://bucket/x")]
FLAGS = ["no", 0, 1, None, [], "true"]
TIMES = [True, "ten", [1], -1, float("nan")]
ELSEWHERE = "another test has it"
MADE_HERE = (
    *("CheckpointRef", "CheckpointedObject", "InitializationContext", "SnapshotContext", "Value"),
    *("OpenSink", "Prepared", "Sink", "SinkContext", "DeltaSink", "IcebergSink", "JdbcSink", "Frame", "KeyedState"),
)
"""What authors get and do not make, and values and options, whose content has tests of its own."""
STAGE: dict[str, Any] = {
    "uid": UIDS, "df": ELSEWHERE, "version": TEXTS, "inputs": ["kep", 3, None, True, ["auto"]], "parts": ELSEWHERE, "by": TEXTS,
}  # fmt: skip
QUERY: dict[str, Any] = {
    "uid": UIDS, "writer": [None, 3, "df", pd.DataFrame()], "after": ["uid", None, 3, [1], [""], [None]], "adopt": PATHS,
    "rescale": FLAGS,
}  # fmt: skip
WRONG: dict[Any, dict[str, dict[str, Any]]] = {
    CheckpointedJob: {
        "__init__": {
            "spark": ["local", 3, {}, pd], "job_id": [3, "", "a b", True, ["a"]], "root": PATHS,
            "checkpointing": [{}, "10 min", 3, CheckpointConfig], "restore": [True, None, 2.5, ["latest"], b"latest"],
            "allow_non_restored_state": [[1], 3, None, {"a": "lose"}, [""], "drop"],
        },
        "stage": STAGE,
        "files": {
            "uid": UIDS, "write": [None, "path", KeepAll], "local": [None, 3, "yes"], "version": STAGE["version"],
        },
        "value": {"uid": UIDS, "default": ELSEWHERE}, "register": {"uid": UIDS, "obj": [KeepAll]},
        "txn": {"uid": UIDS}, "sink": {"uid": UIDS, "sink": [None, 3, "/data/out", FileSink, pd.DataFrame()], "gated": FLAGS},
        "iterate": {"uid": UIDS, "items": ELSEWHERE, "every": [0, -1, True, "often", [1], 2.5j, "0 s"]},
        "once": {"uid": UIDS, "items": ELSEWHERE}, "frame": {"uid": UIDS, "initial": ELSEWHERE},
        "keyed_state": {
            "uid": UIDS, "key": [None, 3, "", [], [3], ["a", "a"], [""]], "schema": [3, "", " ", ["a int"]],
            "max_parallelism": [0, -1, True, "128", 1.5, 40_000, None],
        },
        "start_query": QUERY, "checkpoint": {"wait": FLAGS}, "await_queries": {},
    },
    Query: {"awaitTermination": {"timeout": TIMES}, "exception": {}, "stop": {}, "handled": {}},
    OpenedCheckpoint: {"__getitem__": {"uid": UIDS}},
    BatchSink: {"__call__": {"frame": [None, 3, pd.DataFrame()], "batch_id": ELSEWHERE}},
    open_checkpoint: {"__call__": {"pointer": [None, 3, True, Path("/x/jobs/a/job/chk-1"), ["/x"]], "spark": [None, 3, "local"]}},
    SinkWriter: {"write": {"df": ELSEWHERE}},
    FileSink: {
        "__init__": {
            "path": [None, "", 3, True, Path("s3://b/x")], "format": [None, 3, "xml", ["parquet"]], "mode": [None, 3, "ignore", True],
            "partition_by": [None, 3, "day", [".day"], [3]],
        },
        "open": {"context": ELSEWHERE},
    },
    read_sink: {"__call__": {"path": [None, "", 3, True, Path("s3://b/x")], "spark": [None, 3, "local"]}},
    batch_sink: {"__call__": {"path": [None, "", 3, True, Path("s3://b/x")], "format": [None, 3, "xml", ["parquet"]]}},
    CheckpointConfig: {
        "__init__": {
            "interval": [None, True, "soon", [1], -1], "min_pause": [None, True, "soon", -1], "timeout": [None, True, "soon", 0],
            "max_concurrent": [None, True, "1", 0, 1.5], "tolerable_failures": [True, "1", -1, 1.5, [1]],
            "mode": [None, 3, "once", ["exactly_once"]], "aligned_timeout": [True, "soon", [1], -1],
            "retention": [None, 3, "all", KeepAll, {"keep": "all"}],
        }
    },
    KeepLatest: {"__init__": {"count": [None, 0, True, "2", 1.5]}},
    KeepWithin: {"__init__": {"age": [3, True, "7 days", timedelta(0), timedelta(-1)], "parts": ELSEWHERE}},
    KeepAll: {"__init__": {}},
}  # fmt: skip
INHERITED = ("keeps", "after_end", "to_json", "from_json")  # the package calls them


def cases() -> Iterator[Any]:
    for owner, calls in WRONG.items():
        for call, parameters in calls.items():
            for name, values in parameters.items():
                for value in values if values is not ELSEWHERE else ():
                    yield pytest.param(owner, call, name, value, id=f"{owner.__name__}.{call}-{name}-{value!r}"[:90])


def called(owner: Any, call: str, **options: Any) -> Any:
    if call == "__init__" or not isinstance(owner, type):
        return owner(**options)
    made = CheckpointedJob() if owner is CheckpointedJob else object.__new__(owner)
    return getattr(made, call)(**options)


RIGHT = {
    "uid": "a", "df": lambda: None, "obj": object(), "pointer": "/root/jobs/a/job/chk-1", "path": "/data/out", "spark": None,
    "frame": None, "batch_id": 0, "writer": None, "count": 2,
    "sink": FileSink("/data/out"), "context": None, "write": print, "key": "carrier", "items": [], "initial": None,
}  # fmt: skip


@pytest.mark.parametrize(("owner", "call", "name", "value"), list(cases()))
def test_wrong_argument_is_refused_by_name(owner: Any, call: str, name: str, value: Any) -> None:
    function = getattr(owner, call) if isinstance(owner, type) else owner
    needed = [
        key for key, parameter in inspect.signature(function).parameters.items() if parameter.default is parameter.empty
    ]
    options = {key: RIGHT[key] for key in needed if key not in ("self", "parts")}
    with pytest.raises((InvalidConfig, InvalidName, WrongUse, NotImplementedError)) as refused:
        called(owner, call, **{**options, name: value})
    assert isinstance(refused.value, CheckpointError)
    assert "not active here" not in refused.value.message


@pytest.mark.parametrize("owner", WRONG, ids=lambda owner: owner.__name__)
def test_table_has_every_parameter_of_every_public_call(owner: Any) -> None:
    found = dict(public(owner))
    assert found == {call: list(parameters) for call, parameters in WRONG[owner].items()}


def test_table_has_every_public_name() -> None:
    exported = {name: getattr(module, name) for module in (spark, checkpoint) for name in module.__all__}
    assert {
        name
        for name, item in exported.items()
        if item not in WRONG
        and name not in MADE_HERE
        and not (isinstance(item, type) and issubclass(item, CheckpointError))
    } == set()


def public(owner: Any) -> Iterator[tuple[str, list[str]]]:
    """Every public call of a class, or a function, with the names of its parameters."""
    if not isinstance(owner, type):
        yield "__call__", list(inspect.signature(owner).parameters)
        return
    special = {CheckpointedJob: "__init__", OpenedCheckpoint: "__getitem__", BatchSink: "__call__"}
    options = owner in (CheckpointConfig, FileSink, KeepLatest, KeepWithin, KeepAll)
    for call, function in inspect.getmembers(owner, inspect.isfunction):
        if call == ("__init__" if options else special.get(owner)) or not (call.startswith("_") or call in INHERITED):
            yield call, [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CheckpointConfig(retension=3), "retention="),  # type: ignore[call-arg]
        (lambda: CheckpointedJob(alow_non_restored_state=True), "Did you mean allow_non_restored_state=?"),  # type: ignore[call-arg]
        (lambda: CheckpointedJob().stage("a", lambda: None, verson="2"), "Did you mean version=?"),  # type: ignore[call-arg, arg-type, return-value]
        (lambda: CheckpointedJob().checkpoint(False), "too many positional arguments"),  # type: ignore[call-arg]
        (lambda: CheckpointedJob().start_query("a"), "missing a required argument: 'writer'"),  # type: ignore[call-arg]
        (lambda: batch_sink("/out", fmt="csv"), "Did you mean format=?"),  # type: ignore[call-arg]
        (KeepLatest, "missing a required argument: 'count'"),
        (lambda: KeepAll(3), "It takes nothing"),  # type: ignore[call-arg]
        (lambda: KeepWithin(dayz=7), "KeepWithin(days=7)"),
        (lambda: KeepWithin(timedelta(1), days=7), "write the time once"),
        (lambda: KeepLatest(2) | 3, "is not a retention policy"),  # type: ignore[operator]
        (lambda: KeepLatest(2) & None, "is not a retention policy"),  # type: ignore[operator]
    ],
)
def test_unknown_option_is_refused_with_the_nearest(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        make()
    assert says in refused.value.message


def test_path_objects_are_paths() -> None:
    assert CheckpointedJob(root=Path("/data/checkpoints"))._root == "/data/checkpoints"
    assert batch_sink(Path("/data/out")).target.path == "/data/out"
