"""A value: small JSON state that the script reads and sets. Runs in the Spark driver."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.records import canonical, refuse_deep

LARGEST_VALUE = 64 * 1024  # bytes of JSON
DEEPEST_VALUE = 64  # lists and dicts inside of each other; a record that holds a value is some ten deeper


class Value:
    """Small JSON state in the driver. It follows the script: see ``CheckpointedJob.value``.

    :param values: the values of the attempt, by uid; ``States.values``.
    :param check: called before each change.
    """

    def __init__(self, values: dict[str, Any], uid: str, default: Any, check: Callable[[], None]) -> None:
        self._values, self._uid, self._default, self._check = values, uid, default, check

    def get(self) -> Any:
        """Return a copy of the value. A change of the copy changes nothing until ``set``."""
        return copy.deepcopy(self._values.get(self._uid, self._default))

    def set(self, value: Any) -> None:
        """Keep ``value`` for the next checkpoint. Raises ``InvalidConfig`` if it is no JSON, or larger than 64 KiB."""
        self._check()
        self._values[self._uid] = json_copy(f"value '{self._uid}'", value)


def json_copy(label: str, value: Any) -> Any:
    """Return ``value`` as a retry will read it, in a copy that nobody else can change.

    Raises ``InvalidConfig`` if it cannot be kept. ``label`` names the value in that error.
    """
    try:
        body = canonical(value)
        copied = json.loads(body)
        refuse_deep(copied, DEEPEST_VALUE)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(
            f"{label}: {error}; a value is JSON (numbers, text, lists, dicts). Keep rows in a stage"
        ) from None
    if len(body) > LARGEST_VALUE:
        raise InvalidConfig(f"{label} has {len(body)} bytes of JSON, {LARGEST_VALUE} are allowed; keep rows in a stage")
    return copied
