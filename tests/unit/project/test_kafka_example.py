"""The example of docs/write/sources.md has the versions that the tests run, and is a DAG that Airflow takes. Runs anywhere."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

from tests.support.delta import CONFS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/write/sources.md").read_text(encoding="utf-8")
EXAMPLE = PAGE.split("## An example: from Kafka to Delta")[1].split("\n## ")[0]
DAG_FILE, SCRIPT = re.findall(r"```python\n(.*?)```", EXAMPLE, re.DOTALL)


def version_in(pom: str, name: str) -> str:
    found = re.search(rf"<{name}>([^<]+)</{name}>", (ROOT / "tests" / pom / "pom.xml").read_text(encoding="utf-8"))
    assert found
    return found[1]


def test_example_has_the_packages_and_confs_of_the_tests() -> None:
    assert f"spark-sql-kafka-0-10_2.13:{version_in('kafka', 'spark')}" in DAG_FILE
    assert f"delta-spark_4.2_2.13:{version_in('delta', 'delta')}" in DAG_FILE
    of_delta = {name: value for name, value in CONFS.items() if name.startswith("spark.sql.")}
    assert all(f'"{name}": "{value}"' in DAG_FILE for name, value in of_delta.items())


def test_task_of_the_example_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "dag.py").write_text(DAG_FILE)
    dag = runpy.run_path(str(tmp_path / "dag.py"))["dag"]
    assert (dag.task_ids, dag.max_active_runs) == (["orders"], 1)


def test_script_of_the_example_starts_one_query() -> None:
    calls = [node for node in ast.walk(ast.parse(SCRIPT)) if isinstance(node, ast.Call)]
    started = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "start_query"]
    assert len(started) == 1
