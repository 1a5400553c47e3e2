"""What tests of retry policies take: tests/support/task_fixtures.py has it."""

from __future__ import annotations

from tests.support.task_fixtures import faulty, outside_of_a_task_runner, store

__all__ = ["faulty", "outside_of_a_task_runner", "store"]
