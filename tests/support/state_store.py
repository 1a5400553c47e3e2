"""Airflow's state store of a task, in memory. Runs anywhere."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any


class TaskStateStore:
    """Values by their keys, as JSON. All tries of a task share it, and the next try after a clear, too."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self._values[key]) if key in self._values else default

    def set(self, key: str, value: Any, retention: timedelta | None = None) -> None:
        self._values[key] = json.dumps(value)
