"""What tests of task groups take: tests/support/task_fixtures.py has it."""

from __future__ import annotations

from tests.support.task_fixtures import outside_of_a_task_runner

__all__ = ["outside_of_a_task_runner"]
