"""The properties of each kind of checkpoint, as in Flink's table of types. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.kinds import KINDS, is_savepoint, kind_named

ROWS = {  # name: savepoint, full, subsumes, suspends, drains
    "checkpoint": (False, False, True, False, False),
    "full_checkpoint": (False, True, True, False, False),
    "savepoint": (True, True, False, False, False),
    "suspend_savepoint": (True, True, True, True, False),
    "terminate_savepoint": (True, True, True, True, True),
}


def test_table_lists_all_kinds() -> None:
    assert set(KINDS) == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_kind_has_the_properties_of_its_row(name: str) -> None:
    kind = kind_named(name)
    assert (kind.savepoint, kind.full, kind.subsumes, kind.suspends, kind.drains) == ROWS[name]
    assert is_savepoint(name) is kind.savepoint
    assert kind.name == name


def test_unknown_kind_is_refused_with_the_known_kinds() -> None:
    with pytest.raises(InvalidConfig, match=r"kind='full': write one of 'checkpoint', 'full_checkpoint', 'savepoint'"):
        kind_named("full")
