"""What tests of the example DAGs take: tests/support/task_fixtures.py has it."""

from __future__ import annotations

from tests.support.task_fixtures import outside_of_a_task_runner, store

__all__ = ["outside_of_a_task_runner", "store"]
