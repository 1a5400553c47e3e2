"""Which modules may import which: layers, circles, exports, what an import loads, and what tests share. Runs anywhere."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import airflow_checkpoint_provider

PACKAGE = Path(airflow_checkpoint_provider.__file__).parent
ROOT = PACKAGE.name
MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
    if "example_dags" not in file.parts  # files that Airflow and Spark run by their paths; no module imports them
}


# Lower layers first: a module knows its own layer and those that its row names.
LAYERS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "policies": ("errors",),
    "protocol": ("errors", "policies"),
    "storage": ("errors",),
    "location": ("errors", "protocol", "storage.base", "storage.copy"),
    "file_sink": ("errors", "protocol", "storage.base", "storage.copy", "location"),
    "sinks": ("errors", "protocol", "storage.base"),
    "coordinator": ("errors", "policies", "protocol", "storage.base", "storage.copy", "location"),
    "text": ("errors", "policies", "protocol", "location", "coordinator"),
    "checkpoint": ("errors", "policies", "protocol"),
    "spark": (
        "errors",
        "policies",
        "protocol",
        "storage",
        "location",
        "file_sink",
        "sinks",
        "coordinator",
        "text",
        "checkpoint",
    ),
}
ANYWHERE = tuple(layer for layer in LAYERS if layer != "spark")


def layer_of(module: str) -> str:
    """Return the layer of a module that travels to the driver; everything else is Airflow's side."""
    folder = module.removeprefix(f"{ROOT}.").split(".")[0]
    return folder if folder in LAYERS else "airflow"


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imported(file: Path) -> tuple[str, ...]:
    """Return the full names that the module imports, also inside functions and for type checkers."""
    names: list[str] = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(names)


def of(*places: str) -> Iterator[tuple[str, str]]:
    """Return pairs of a module in ``places`` and a name that it imports."""
    for module, file in sorted(MODULES.items()):
        if layer_of(module) in places:
            yield from ((module, name) for name in imported(file))


def own(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] == ROOT


def below(name: str, *modules: str) -> bool:
    return any(f"{name}.".startswith(f"{ROOT}.{module}.") for module in modules)


def test_modules_lie_in_all_layers() -> None:
    assert {layer_of(module) for module in MODULES} == {*LAYERS, "airflow"}


def test_only_two_modules_import_more_than_the_standard_library() -> None:
    foreign = [
        (module, name.split(".")[0])
        for module, name in of(*ANYWHERE)
        if not own(name) and name.split(".")[0] not in sys.stdlib_module_names
    ]
    allowed = {"s3": ("boto3", "botocore", "mypy_boto3_s3"), "s3_credentials": ("boto3", "botocore")}
    assert set(foreign) == {(f"{ROOT}.storage.{module}", name) for module, names in allowed.items() for name in names}


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_lower_layers(layer: str) -> None:
    """The driver's side never knows Airflow: it ships with the job, to clusters that have none."""
    allowed = {f"{ROOT}.__version__"} | {f"{ROOT}.{lower}" for lower in LAYERS[layer]}
    others = [
        (module, name)
        for module, name in of(layer)
        if name.split(".")[0] == "airflow"
        or (own(name) and name not in allowed and not below(name, layer, *LAYERS[layer]))
    ]
    assert others == []


def test_airflows_side_never_imports_spark() -> None:
    others = [
        (module, name)
        for module, name in of("airflow")
        if name.split(".")[0] in ("pyspark", "py4j") or below(name, "spark")
    ]
    assert others == []


def test_pages_import_no_operator() -> None:
    """The API server draws them, and needs no task."""
    others = [
        (module, name)
        for module, name in of("airflow")
        if below(module, "ui") and below(name, "operators", "sensors", "triggers")
    ]
    assert others == []


def knows(module: str) -> set[str]:
    """Return the modules of the package that ``module`` imports anywhere in its text; a name of a package counts as it."""
    names = {name if name in MODULES else name.rpartition(".")[0] for name in imported(MODULES[module])}
    return names & MODULES.keys() - {module}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of one circle in ``graph``, or an empty list."""
    done: set[str] = set()

    def walk(path: list[str]) -> list[str]:
        for name in sorted(graph[path[-1]]):
            if name in path:
                return [*path[path.index(name) :], name]
            if name not in done and (found := walk([*path, name])):
                return found
        done.add(path[-1])
        return []

    return next((found for start in sorted(graph) if (found := walk([start]))), [])


def test_circle_finds_a_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_modules_have_no_import_circle() -> None:
    assert circle({module: knows(module) - {ROOT} for module in MODULES}) == []


def named() -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each class and function of the package, with its module."""
    for module, file in MODULES.items():
        for node in ast.walk(parsed(file)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield module, node


def test_no_two_classes_have_one_name() -> None:
    """Who looks for a name finds one thing."""
    classes: dict[str, list[str]] = {}
    for module, node in named():
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name.lstrip("_"), []).append(module)
    assert {name: modules for name, modules in classes.items() if len(modules) > 1} == {}


def constants() -> Iterator[tuple[str, str]]:
    """Yield the name of each constant and of each field of the package, with its module."""
    for module, file in MODULES.items():
        tree = parsed(file)
        for body in (tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))):
            for node in body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                yield from ((module, target.id) for target in targets if isinstance(target, ast.Name))


def test_names_use_the_words_of_the_table() -> None:
    table = (PACKAGE.parent / "CONTRIBUTING.md").read_text().split("## One word, one thing")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    avoided = {word.strip() for *_, words in rows for word in words.split(",") if word.strip()}
    assert len(avoided) > 5
    names = [*((module, node.name) for module, node in named()), *constants()]
    assert ("airflow_checkpoint_provider.spark.end", "PAUSE") in names
    found = {
        f"{module}.{name}"
        for module, name in names
        if avoided & {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    }
    assert found == {"airflow_checkpoint_provider.coordinator.entry.place"}, "the golden files have this field"


def test_one_module_asks_py4j_for_classes() -> None:
    """A class that is not asked for by its full name costs a search through all jars for each of its packages."""
    found = {
        module
        for module in MODULES
        for node in ast.walk(parsed(MODULES[module]))
        if isinstance(node, ast.Attribute) and node.attr in ("_jvm", "jvm")
    }
    assert found == {f"{ROOT}.spark.java_classes"}


FOLDERS = sorted(
    {".".join(module.split(".")[:depth]) for module in MODULES for depth in range(1, module.count(".") + 1)}
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_has_no_import_circle(folder: str) -> None:
    """What lies in a folder, a module or a folder of modules, imports in one direction."""

    def inside(module: str) -> str | None:
        return module.removeprefix(f"{folder}.").split(".")[0] if module.startswith(f"{folder}.") else None

    graph: dict[str, set[str]] = {}
    for module in MODULES:
        if own_part := inside(module):
            others = {part for name in knows(module) if (part := inside(name)) and part != own_part}
            graph.setdefault(own_part, set()).update(others)
    assert circle(graph) == []


FROM_TESTS = re.compile(r"^ *(?:from|import) tests\b[\w.]*(?: import (?:\([^)]*\)|.*))?", re.MULTILINE)


def test_tests_import_nothing_from_a_file_of_tests() -> None:
    """Who changes a test shall change no other one. What two files use lies in a module of its own."""
    tests = PACKAGE.parent / "tests"
    others = [
        (str(file.relative_to(tests)), found[0])
        for file in sorted(tests.rglob("*.py"))
        for found in FROM_TESTS.finditer(file.read_text(encoding="utf-8"))
        if re.search(r"\btest_", found[0])
    ]
    assert others == []


EXPORTS = {  # public names; a name here stays
    "checkpoint": (
        "CheckpointConfig",
        "CheckpointError",
        "CheckpointFailed",
        "CheckpointNotFound",
        "CommitFailed",
        "CommitStateUnknown",
        "Damaged",
        "Declined",
        "DuplicateKeys",
        "InvalidConfig",
        "InvalidName",
        "ItemsChanged",
        "JobAlreadyRunning",
        "JobSuspended",
        "KeepAll",
        "KeepLatest",
        "KeepWithin",
        "KindChanged",
        "NonRestoredState",
        "NotInParts",
        "NotPending",
        "NotSupportedYet",
        "OverwrittenSince",
        "PartsDiffer",
        "RowsRefused",
        "RowsStand",
        "SchemaChanged",
        "SinkMoved",
        "SourceMoved",
        "StateRequired",
        "StoreDenied",
        "StoreError",
        "StoreMisconfigured",
        "StoreUnavailable",
        "Superseded",
        "UnsupportedType",
        "WrongUse",
    ),
    "operators": (
        "AbortCheckpointOperator",
        "CheckpointedSparkSubmitOperator",
        "DisposeSavepointOperator",
        "FinalizeCheckpointOperator",
        "NotifyCheckpointCompleteOperator",
        "RestoreOperator",
        "StopWithSavepointOperator",
        "TriggerCheckpointOperator",
        "TriggerSavepointOperator",
    ),
    "notifications": ("CheckpointNotifier",),
    "retry_policies": ("CheckpointRetryPolicy",),
    "sensors": ("CheckpointAcknowledgedSensor", "CheckpointCompletedSensor", "CheckpointHealthSensor"),
    "spark": (
        "CheckpointRef",
        "CheckpointedJob",
        "CheckpointedObject",
        "DeltaSink",
        "FileSink",
        "Frame",
        "IcebergSink",
        "InitializationContext",
        "JdbcSink",
        "KeyedState",
        "OpenSink",
        "OpenedCheckpoint",
        "Prepared",
        "Query",
        "Sink",
        "SinkContext",
        "SinkWriter",
        "SnapshotContext",
        "Value",
        "batch_sink",
        "open_checkpoint",
        "read_sink",
    ),
    "task_groups": ("CheckpointTaskGroup",),
}
NO_EXPORTS = ("cli", "coordinator", "hooks", "policies", "protocol", "triggers", "ui", "ui.views")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_first_line_of_a_module_says_where_it_runs(module: str) -> None:
    docstring = ast.get_docstring(parsed(MODULES[module]))
    assert docstring
    first = docstring.splitlines()[0]
    spark = ("Runs in the Spark driver", "Runs anywhere")
    words = {"spark": spark, "airflow": ("Runs ",)}
    assert any(phrase in first for phrase in words.get(layer_of(module), ("Runs anywhere",))), first


# -- what an import brings -----------------------------------------------------------------------------------------------


SIDES = {  # options and first line of an interpreter that imports all modules of a side
    "anywhere": (("-I", "-S"), ""),  # no site packages, nothing from the environment, as in an archive on a driver
    "airflow": ((), ""),
    "spark": ((), "sys.modules['airflow'] = None"),
}


class Imported(NamedTuple):
    loaded: set[str]  # every name in sys.modules
    exports: dict[str, list[str] | None]  # __all__ by module
    missing: list[str]  # exported names that do not exist


def run(modules: list[str], options: tuple[str, ...] = (), before: str = "") -> Imported:
    """Import the modules in a new interpreter."""
    script = f"""
import sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
{before}
import importlib, json
modules = {{name: importlib.import_module(name) for name in {modules!r}}}
exports = {{name: getattr(module, "__all__", None) for name, module in modules.items()}}
missing = [name for module in modules for name in exports[module] or () if not hasattr(modules[module], name)]
print(json.dumps([sorted(sys.modules), exports, missing]))
"""
    ran = subprocess.run(
        [sys.executable, *options, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    loaded, exports, missing = json.loads(ran.stdout.splitlines()[-1])
    return Imported(set(loaded), exports, missing)


def side(module: str) -> str:
    return "anywhere" if layer_of(module) in ANYWHERE else layer_of(module)


OF_SERVICES = {
    f"{ROOT}.operators.{name}" for name in ("databricks", "dataproc", "emr", "kubernetes_pod", "spark_kubernetes")
}
"""Their providers are large, and in environments of their own (tests/support/providers.py)."""


@cache
def all_of(name: str) -> Imported:
    """Import all modules of a side: one interpreter for all tests that look at it."""
    return run(sorted(module for module in MODULES.keys() - OF_SERVICES if side(module) == name), *SIDES[name])


def exports_of(package: str) -> list[str] | None:
    return all_of(side(f"{ROOT}.{package}")).exports[f"{ROOT}.{package}"]


@pytest.mark.parametrize("package", EXPORTS)
def test_public_package_exports_its_promised_names(package: str) -> None:
    assert tuple(exports_of(package) or ()) == EXPORTS[package]


@pytest.mark.parametrize("package", NO_EXPORTS)
def test_other_packages_export_nothing(package: str) -> None:
    """Their modules are imported by their own names."""
    assert exports_of(package) is None


@pytest.mark.parametrize("name", SIDES)
def test_exported_names_exist(name: str) -> None:
    assert all_of(name).missing == []


def test_layers_below_spark_import_in_a_bare_interpreter() -> None:
    loaded = all_of("anywhere").loaded
    assert {name.split(".")[0] for name in loaded} <= sys.stdlib_module_names | {ROOT, "__main__"}


def test_modules_of_airflows_side_import_neither_spark_nor_boto3() -> None:
    """A DAG file is parsed again and again; a second per import is a second per parse."""
    loaded = all_of("airflow").loaded
    assert f"{ROOT}.operators" in loaded
    assert {"airflow"} <= loaded
    heavy = {"boto3", "botocore", "pyspark", "py4j", "pandas", "numpy", "pyarrow"}
    assert {name.split(".")[0] for name in loaded} & heavy == set()
    assert not any(below(name, "spark") for name in loaded)


def test_driver_imports_without_airflow() -> None:
    loaded = all_of("spark").loaded
    assert f"{ROOT}.spark.job" in loaded
    assert not any(name.startswith("airflow.") for name in loaded)


def test_command_line_imports_without_airflow() -> None:
    """``checkpoints --root URI`` is for hosts that have none."""
    loaded = run([f"{ROOT}.cli.main"], before="sys.modules['airflow'] = None").loaded
    assert not any(name.startswith("airflow.") for name in loaded)
