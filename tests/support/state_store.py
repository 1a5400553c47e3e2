"""Airflow's state store of a task, in memory or in a file. Runs anywhere."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any


class TaskStateStore:
    """Values by their keys, as JSON. All tries of a task share it, and the next try after a clear, too.

    With a ``file``, tries in several processes share it.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._values: dict[str, str] = json.loads(file.read_text()) if file and file.exists() else {}

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self._values[key]) if key in self._values else default

    def set(self, key: str, value: Any, retention: timedelta | None = None) -> None:
        self._values[key] = json.dumps(value)
        if self._file:
            self._file.write_text(json.dumps(self._values))
