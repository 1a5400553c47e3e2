"""What each kind of checkpoint may do: Flink's table of types, row by row. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.kinds import KINDS, is_savepoint, kind_named

ROWS = {  # name: savepoint, forced, full, subsumes, suspends, drains
    "checkpoint": (False, False, False, True, False, False),
    "full_checkpoint": (False, False, True, True, False, False),
    "savepoint": (True, True, True, False, False, False),
    "suspend_savepoint": (True, True, True, True, True, False),
    "terminate_savepoint": (True, True, True, True, True, True),
}


def test_there_are_no_others() -> None:
    assert set(KINDS) == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_kind(name: str) -> None:
    kind = kind_named(name)
    assert (kind.savepoint, kind.forced, kind.full, kind.subsumes, kind.suspends, kind.drains) == ROWS[name]
    assert is_savepoint(name) is kind.savepoint
    assert kind.name == name


def test_a_name_that_is_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidConfig, match=r"kind='full': write one of 'checkpoint', 'full_checkpoint', 'savepoint'"):
        kind_named("full")
