"""The modules that a script imports: which files are found, and which code computes its imports. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.spark.stages.imports import ModuleSource, closure

FILES = {
    "dates.py": b"import calendars.weeks",
    "calendars/__init__.py": b"",
    "calendars/weeks.py": b"from . import days\nfrom .moon import phase\nfrom ..dates import x",
    "calendars/days.py": b"import dates",
    "calendars/moon/phases.py": b"",
    "calendars/moon/phase.py": b"",
    "listed/__init__.py": b'__all__ = ["first"]\n__all__ += ["second"]',
    "listed/first.py": b"",
    "listed/second.py": b"",
    "broken.py": b"import dates as",
    "unrelated.py": b"import importlib",
    "report.py": b"",
}
PACKED = {"lib/a.py": b"import dates", "dates.py": b"hidden by the folder", "loose.py": b""}
SOURCES = [ModuleSource("", FILES.get), ModuleSource("lib.zip/", PACKED.get)]


def modules(script: str, package: str = "") -> set[str]:
    found = closure(script.encode(), package, SOURCES)
    assert found.computed is None
    return set(found.modules)


DATES = {"dates.py", "calendars/__init__.py", "calendars/weeks.py", "calendars/days.py", "calendars/moon/phase.py"}


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import os, json.decoder\nfrom pyspark.sql import functions as F", set()),
        ("import dates", DATES),
        ("def late():\n    if True:\n        from dates import x", DATES),
        ("from calendars import days", DATES),
        ("import calendars.moon.phases", {"calendars/__init__.py", "calendars/moon/phases.py"}),
        ("from listed import *", {"listed/__init__.py", "listed/first.py", "listed/second.py"}),
        ("import broken", {"broken.py"}),
        ("import lib.a", {"lib.zip/lib/a.py", *DATES}),
        ("import loose", {"lib.zip/loose.py"}),
        ("from . import dates", set()),
        ("no python", set()),
    ],
)
def test_closure_holds_what_is_imported(script: str, found: set[str]) -> None:
    assert modules(script) == found


def test_relative_import_of_a_script_in_a_package_is_found() -> None:
    assert modules("from . import phase\nfrom ..days import x", "calendars.moon") == DATES
    assert modules("from . import days", "calendars") == DATES


def test_module_of_the_folder_hides_a_module_of_py_files() -> None:
    assert closure(b"import dates", "", SOURCES).modules["dates.py"] == FILES["dates.py"]


@pytest.mark.parametrize(
    ("script", "computed"),
    [
        ("import importlib\nimportlib.import_module(name)", "importlib"),
        ("from importlib import import_module", "importlib.import_module"),
        ("import importlib.util", "importlib.util"),
        ("def f():\n    import runpy", "runpy"),
        ("__import__(name)", "__import__"),
        ("exec(text)", "exec"),
        ("import sys\nsys.path.insert(0, 'lib')", "sys.path"),
        ("from sys import path", "sys.path"),
        ("spark.sparkContext.addPyFile(path)", "addPyFile"),
    ],
)
def test_computed_import_is_noticed(script: str, computed: str) -> None:
    assert closure(script.encode(), "", SOURCES).computed == f"{computed} in the script"


def test_computed_import_of_a_module_names_the_module() -> None:
    found = closure(b"import unrelated", "", SOURCES)
    assert (set(found.modules), found.computed) == ({"unrelated.py"}, "importlib in unrelated.py")


@pytest.mark.parametrize(
    "script",
    [
        "from importlib import metadata, resources",
        "from importlib.metadata import version",
        "import importlib.resources",
        "cursor.exec('select 1')",
        "import os.path\nos.path.join('a', 'b')",
        "import sys\nsys.argv",
    ],
)
def test_harmless_code_is_no_computed_import(script: str) -> None:
    assert closure(script.encode(), "", SOURCES).computed is None
