"""The example DAGs whose next run starts at once: when they stop doing so."""

from __future__ import annotations

import ast

from tests.support.stack import EXAMPLES

LIMITS = {"clean_orders": 10, "new_customers": 10, "STREAM": 0, "watched_orders": 1}
"""Failed runs in a row after which Airflow pauses the DAG; 0: never, because a rollback starts the old version in this DAG."""


def word(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def test_continuous_dag_is_paused_after_so_many_failed_runs() -> None:
    """Else it repeats an error that no retry can mend for ever, unless somebody has thought about it."""
    found = {}
    for file in EXAMPLES.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        for call in (call for call in calls if ast.unparse(call.func) == "DAG"):
            given = {keyword.arg: word(keyword.value) for keyword in call.keywords}
            if given.get("schedule") == "@continuous":
                found[word(call.args[0])] = int(given.get("max_consecutive_failed_dag_runs", "0"))
    assert found == LIMITS
