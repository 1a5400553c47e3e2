"""The checks of ``parts=`` and ``by=`` of a stage. Runs in the Spark driver."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig, WrongUse
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.state.value import json_copy
from airflow_checkpoint_provider.text.part_messages import shown

MOST_PARTS = 1_000  # each checkpoint lists all that are done
LARGEST_LIST = 256 * 1024  # bytes of JSON
A_LIST = (list, tuple, range)


@dataclass(frozen=True)
class Parts:
    """``parts=`` or ``by=`` of a stage: the values as the function gets them and as JSON, or the column. One of them is there."""

    given: Sequence[Any] = ()
    values: Sequence[Any] = ()
    by: str | None = None

    @classmethod
    def of(cls, uid: str, source: Any, parts: Any, by: str | None) -> Parts:
        """Check the options against each other and against the ``source`` of the stage. Raises ``InvalidConfig`` and ``WrongUse``."""
        if by is not None and parts is not None:
            raise InvalidConfig(f"stage '{uid}' has parts= and by=: write one of them")
        if by is not None:
            if callable(source):
                raise WrongUse(
                    f'stage \'{uid}\' has by=, and was given a function. Give the DataFrame: job.stage("{uid}", df, by="{by}")'
                )
            return cls(by=by)
        values = _values(uid, parts)
        _check_function(uid, source, parts[0])
        return cls(parts, values)


def _values(uid: str, parts: Any) -> list[Any]:
    """Return the list of parts as JSON: a retry compares it."""
    if not isinstance(parts, A_LIST):
        raise InvalidConfig(
            f"stage '{uid}': parts= is a {type(parts).__name__}. Give a list, in an order that is the same in each attempt: parts=sorted(...)"
        )
    if not parts:
        raise InvalidConfig(f"stage '{uid}': parts= is empty, so nobody knows its columns. Leave the stage out then")
    if len(parts) > MOST_PARTS:
        raise InvalidConfig(
            f"stage '{uid}' has {len(parts)} parts, more than {MOST_PARTS}. Let a part be a list of several: parts=[days[i : i + 10] for i in"
            " range(0, len(days), 10)]"
        )
    values = [json_copy(f"part {number} of stage '{uid}'", value) for number, value in enumerate(parts, start=1)]
    if (size := len(canonical(values))) > LARGEST_LIST:
        raise InvalidConfig(
            f"stage '{uid}': parts= has {size} bytes of JSON, more than {LARGEST_LIST}. Give short names, and look the rest up in the function"
        )
    seen = set[bytes]()
    for value in values:
        if (text := canonical(value)) in seen:
            raise InvalidConfig(f"stage '{uid}': parts= holds {shown(value)} twice, so its rows would be doubled")
        seen.add(text)
    return values


def _check_function(uid: str, source: Any, value: Any) -> None:
    """Raise ``WrongUse`` unless ``source`` can be called with the value of one part."""
    call = f'Give a function of one value: job.stage("{uid}", lambda day: read(day), parts=[...])'
    if not callable(source):
        raise WrongUse(f"stage '{uid}' has parts=, and was given no function. {call}")
    try:
        inspect.signature(source).bind(value)
    except ValueError:  # nobody knows what it takes
        return
    except TypeError as error:
        raise WrongUse(f"stage '{uid}' was given a function that does not take one value ({error}). {call}") from None
