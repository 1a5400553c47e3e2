"""What tests of hooks take: tests/support/task_fixtures.py has it."""

from __future__ import annotations

from tests.support.task_fixtures import faulty, job, outside_of_a_task_runner, store

__all__ = ["faulty", "job", "outside_of_a_task_runner", "store"]
