"""Who may know whom: three places that run this code, and knowledge that flows one way. Runs anywhere."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import airflow_checkpoint_provider

PACKAGE = Path(airflow_checkpoint_provider.__file__).parent
ROOT = PACKAGE.name
MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
}


# Lower layers first: a module knows its own layer and those that its row names.
LAYERS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "policies": ("errors",),
    "protocol": ("errors", "policies"),
    "storage": ("errors",),
    "coordinator": ("errors", "policies", "protocol", "storage.base"),
    "text": ("errors", "policies", "protocol", "coordinator"),
    "checkpoint": ("errors", "policies", "protocol"),
    "spark": ("errors", "policies", "protocol", "storage", "coordinator", "text", "checkpoint"),
}
ANYWHERE = tuple(layer for layer in LAYERS if layer != "spark")


def place(module: str) -> str:
    """Return the layer of a module that travels to the driver; everything else is Airflow's side."""
    folder = module.removeprefix(f"{ROOT}.").split(".")[0]
    return folder if folder in LAYERS else "airflow"


def imported(file: Path) -> Iterator[str]:
    """Every name that the module imports, full, also inside functions and for type checkers."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def of(*places: str) -> Iterator[tuple[str, str]]:
    """Pairs of module and what it imports, of these places."""
    for module, file in sorted(MODULES.items()):
        if place(module) in places:
            yield from ((module, name) for name in imported(file))


def own(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] == ROOT


def below(name: str, *modules: str) -> bool:
    return any(f"{name}.".startswith(f"{ROOT}.{module}.") for module in modules)


def test_all_places_are_looked_at() -> None:
    assert {place(module) for module in MODULES} == {*LAYERS, "airflow"}


def test_only_the_two_s3_modules_need_more_than_the_standard_library() -> None:
    foreign = [
        (module, name.split(".")[0])
        for module, name in of(*ANYWHERE)
        if not own(name) and name.split(".")[0] not in sys.stdlib_module_names
    ]
    allowed = {"s3": ("boto3", "botocore", "mypy_boto3_s3"), "s3_credentials": ("boto3", "botocore")}
    assert set(foreign) == {(f"{ROOT}.storage.{module}", name) for module, names in allowed.items() for name in names}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_knows_the_layers_below_alone(layer: str) -> None:
    """The driver's side never knows Airflow: it ships with the job, to clusters that have none."""
    allowed = {f"{ROOT}.__version__"} | {f"{ROOT}.{one}" for one in LAYERS[layer]}
    others = [
        (module, name)
        for module, name in of(layer)
        if name.split(".")[0] == "airflow"
        or (own(name) and name not in allowed and not below(name, layer, *LAYERS[layer]))
    ]
    assert others == []


def test_airflows_side_never_knows_spark() -> None:
    others = [
        (module, name)
        for module, name in of("airflow")
        if name.split(".")[0] in ("pyspark", "py4j") or below(name, "spark")
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


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle({module: knows(module) - {ROOT} for module in MODULES}) == []


def test_no_packages_import_each_other_in_a_circle() -> None:
    """A package is a folder of the package; a module beside them counts as one."""
    graph: dict[str, set[str]] = {}
    for module in MODULES.keys() - {ROOT}:
        package = module.split(".")[1]
        others = {name.split(".")[1] for name in knows(module) - {ROOT}}
        graph.setdefault(package, set()).update(others - {package})
    assert circle(graph) == []


EXPORTS = {  # what people import; a name that is here stays
    "checkpoint": (
        "CheckpointConfig",
        "CheckpointError",
        "CheckpointNotFound",
        "CommitStateUnknown",
        "Damaged",
        "JobAlreadyRunning",
        "JobSuspended",
        "KeepAll",
        "KeepLatest",
        "KeepWithin",
        "StateRequired",
        "StoreDenied",
        "StoreError",
        "StoreMisconfigured",
        "StoreUnavailable",
        "Superseded",
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
    "sensors": ("CheckpointAcknowledgedSensor", "CheckpointCompletedSensor"),
    "spark": (
        "CheckpointRef",
        "CheckpointedJob",
        "CheckpointedObject",
        "InitializationContext",
        "OpenedCheckpoint",
        "SnapshotContext",
        "Value",
        "open_checkpoint",
    ),
    "task_groups": ("CheckpointTaskGroup",),
}
NO_EXPORTS = ("cli", "coordinator", "hooks", "policies", "protocol", "triggers")


@pytest.mark.parametrize("package", EXPORTS)
def test_a_public_package_exports_what_it_promises(package: str) -> None:
    module = importlib.import_module(f"{ROOT}.{package}")
    assert tuple(module.__all__) == EXPORTS[package]
    assert all(hasattr(module, name) for name in EXPORTS[package])


@pytest.mark.parametrize("package", NO_EXPORTS)
def test_another_package_exports_nothing(package: str) -> None:
    """People import its modules by their own names."""
    assert not hasattr(importlib.import_module(f"{ROOT}.{package}"), "__all__")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_says_where_it_runs(module: str) -> None:
    docstring = ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    assert docstring
    first = docstring.splitlines()[0]
    spark = ("Runs in the Spark driver", "Runs anywhere")
    words = {"spark": spark, "airflow": ("Runs ",)}
    assert any(one in first for one in words.get(place(module), ("Runs anywhere",))), first


# -- what an import brings -----------------------------------------------------------------------------------------------


def loaded_by(modules: Iterable[str], *options: str, before: str = "") -> set[str]:
    """The top-level names that are loaded after a new interpreter has imported these modules."""
    script = f"""
import sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
{before}
import importlib, json
for module in {sorted(modules)!r}:
    importlib.import_module(module)
print(json.dumps(sorted(sys.modules)))
"""
    ran = subprocess.run(
        [sys.executable, *options, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_the_protocol_and_the_stores_import_in_a_bare_interpreter() -> None:
    """No site packages, nothing from the environment: as they travel to a driver in an archive."""
    loaded = loaded_by((module for module in MODULES if place(module) in ANYWHERE), "-I", "-S")
    assert {name.split(".")[0] for name in loaded} <= sys.stdlib_module_names | {ROOT, "__main__"}


def test_operators_and_hooks_bring_neither_spark_nor_boto() -> None:
    """A DAG file is parsed again and again; a second per import is a second per parse."""
    loaded = loaded_by(module for module in MODULES if place(module) == "airflow")
    assert f"{ROOT}.operators" in loaded
    assert {"airflow"} <= loaded
    heavy = {"boto3", "botocore", "pyspark", "py4j", "pandas", "numpy", "pyarrow"}
    assert {name.split(".")[0] for name in loaded} & heavy == set()
    assert not any(below(name, "spark") for name in loaded)


def test_the_driver_imports_where_there_is_no_airflow() -> None:
    loaded = loaded_by(
        (module for module in MODULES if place(module) == "spark"), before="sys.modules['airflow'] = None"
    )
    assert f"{ROOT}.spark.job" in loaded
    assert not any(name.startswith("airflow.") for name in loaded)


def test_the_command_line_needs_no_airflow() -> None:
    """``checkpoints --root URI`` is for hosts that have none."""
    loaded = loaded_by([f"{ROOT}.cli.main"], before="sys.modules['airflow'] = None")
    assert not any(name.startswith("airflow.") for name in loaded)
