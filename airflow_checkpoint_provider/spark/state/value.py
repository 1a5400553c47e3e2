"""A value: small JSON state that the script reads and sets. Runs in the Spark driver."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.records import canonical, cut, refuse_deep
from airflow_checkpoint_provider.text.units import some

LARGEST_VALUE = 64 * 1024  # bytes of JSON
DEEPEST_VALUE = 64  # lists and dicts inside of each other; a record that holds a value is some ten deeper


class Value:
    """Small JSON state in the driver. It follows the script: see ``CheckpointedJob.value``.

    :param values: the values of the attempt, by uid; ``States.values``.
    :param change: changes one of them.
    """

    def __init__(self, values: Mapping[str, Any], uid: str, default: Any, change: Callable[[str, Any], None]) -> None:
        self._values, self._uid, self._change = values, uid, change
        self._default = json_copy(f"the default of value '{uid}'", default)

    def get(self) -> Any:
        """Return a copy of the value. A change of the copy changes nothing until ``set``."""
        return copy.deepcopy(self._values.get(self._uid, self._default))

    def set(self, value: Any) -> None:
        """Keep ``value`` for the next checkpoint. Raises ``InvalidConfig`` if it is no JSON, or larger than 64 KiB.

        Tuples and keys that are no text are refused: a retry would read something else.
        """
        self._change(self._uid, json_copy(f"value '{self._uid}'", value))


def json_copy(label: str, value: Any) -> Any:
    """Return ``value`` as a retry will read it, in a copy that nobody else can change.

    Raises ``InvalidConfig`` if it cannot be kept. ``label`` names the value in that error.
    """
    try:
        _refuse_unlike(value)
        body = canonical(value)
        copied = json.loads(body)
        refuse_deep(copied, DEEPEST_VALUE)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(
            f"{label}: {cut(str(error))}; a value is JSON (numbers, text, lists, dicts). Keep rows in a stage"
        ) from None
    if len(body) > LARGEST_VALUE:
        raise InvalidConfig(f"{label} has {len(body)} bytes of JSON, {LARGEST_VALUE} are allowed; keep rows in a stage")
    return copied


def _refuse_unlike(value: Any, *path: Any) -> None:
    """Raise ``TypeError`` for a value that JSON would silently change. Name its ``path``: the keys and positions around it."""
    if isinstance(value, tuple):
        raise TypeError(f"{_at(path)}a {type(value).__name__} would come back as a list. Give a list or a dict")
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str)]:
            keys = some([f"{key!r} ({type(key).__name__})" for key in wrong])
            raise TypeError(f"{_at(path)}{keys} as a key would come back as text. Write str(key)")
        for key, inner in value.items():
            _refuse_unlike(inner, *path, key)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            _refuse_unlike(inner, *path, position)


def _at(path: tuple[Any, ...]) -> str:
    return f"at {''.join(f'[{step!r}]' for step in path)}, " if path else ""
