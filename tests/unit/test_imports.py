"""Who may know whom: three places that run this code, and knowledge that flows one way. Runs anywhere."""

from __future__ import annotations

import ast
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


def place(module: str) -> str:
    """``checkpoint``, ``storage`` or ``spark``; everything else is Airflow's side."""
    folder = module.removeprefix(f"{ROOT}.").split(".")[0]
    return folder if folder in ("checkpoint", "storage", "spark") else "airflow"


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


def test_all_three_places_are_looked_at() -> None:
    assert {place(module) for module in MODULES} == {"checkpoint", "storage", "spark", "airflow"}


def test_the_protocol_and_the_stores_need_the_standard_library_alone_and_one_module_boto3() -> None:
    foreign = [
        (module, name.split(".")[0])
        for module, name in of("checkpoint", "storage")
        if not own(name) and name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert set(foreign) == {(f"{ROOT}.storage.s3", name) for name in ("boto3", "botocore", "mypy_boto3_s3")}


def test_the_protocol_knows_stores_only_by_their_interface() -> None:
    allowed = (f"{ROOT}.storage.open_beside",)
    others = [
        (module, name)
        for module, name in of("checkpoint")
        if own(name) and not below(name, "checkpoint", "storage.base") and name not in allowed
    ]
    assert others == []


def test_the_stores_know_the_protocols_errors_alone() -> None:
    others = [
        (module, name)
        for module, name in of("storage")
        if own(name) and not below(name, "storage", "checkpoint.errors")
    ]
    assert others == []


def test_the_driver_never_knows_airflow() -> None:
    """It ships with the job, to clusters that have no Airflow."""
    allowed = (f"{ROOT}.__version__",)
    others = [
        (module, name)
        for module, name in of("spark")
        if name.split(".")[0] == "airflow"
        or (own(name) and not below(name, "spark", "checkpoint", "storage") and name not in allowed)
    ]
    assert others == []


def test_airflows_side_never_knows_spark() -> None:
    others = [
        (module, name)
        for module, name in of("airflow")
        if name.split(".")[0] in ("pyspark", "py4j") or below(name, "spark")
    ]
    assert others == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_says_where_it_runs(module: str) -> None:
    docstring = ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    assert docstring
    first = docstring.splitlines()[0]
    spark = ("Runs in the Spark driver", "Runs anywhere")
    words = {"checkpoint": ("Runs anywhere",), "storage": ("Runs anywhere",), "spark": spark, "airflow": ("Runs ",)}
    assert any(one in first for one in words[place(module)]), first


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
    loaded = loaded_by((module for module in MODULES if place(module) in ("checkpoint", "storage")), "-I", "-S")
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
