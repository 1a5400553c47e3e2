"""What tests of triggers take: tests/support/task_fixtures.py has it."""

from __future__ import annotations

from tests.support.task_fixtures import asked, faulty, job, outside_of_a_task_runner, store

__all__ = ["asked", "faulty", "job", "outside_of_a_task_runner", "store"]
