"""A stored schema is read without code: no module is imported, nothing is called, no pickle is read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, UserDefinedType

from airflow_checkpoint_provider.errors import Damaged, WrongUse
from airflow_checkpoint_provider.spark.stages.schemas import first_difference, stored_schema
from tests.support.planted_schemas import ABSENT, SCRIPT, nested, planted, stored, user_type, vectors, ways


class PointType(UserDefinedType):
    @classmethod
    def sqlType(cls) -> LongType:  # noqa: N802 - PySpark's name
        return LongType()

    @classmethod
    def module(cls) -> str:
        return __name__


@pytest.fixture
def python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what ``planted`` changes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, SCRIPT, sys)
    monkeypatch.delitem(sys.modules, SCRIPT)


@pytest.mark.usefixtures("python_path")
def test_stored_schema_runs_no_code(tmp_path: Path) -> None:
    assert ways(planted(tmp_path), tmp_path) == []


def test_type_that_the_script_has_not_imported_is_asked_for(tmp_path: Path) -> None:
    for kind in nested(user_type(f"{ABSENT}.Anything", tmp_path)):
        with pytest.raises(WrongUse, match=rf"type {ABSENT}\.Anything: import it before the stage is read"):
            stored_schema(stored(kind))


def test_type_that_the_script_has_imported_is_read_and_its_stored_pickle_is_not(tmp_path: Path) -> None:
    for kind in nested(user_type(f"{__name__}.PointType", tmp_path / "unpickled")):
        assert PointType.__name__ in repr(stored_schema(stored(kind)))
    assert not list(tmp_path.iterdir())


def test_vectors_are_read_in_a_script_that_has_not_imported_them() -> None:
    assert vectors() == "VectorUDT"


def test_metadata_of_a_column_are_kept_whatever_their_names_are() -> None:
    metadata = {"pyClass": "os.system", "serializedClass": "gASV", "metadata": {"serializedClass": 1}}
    field = {"name": "id", "type": "long", "nullable": True, "metadata": metadata}
    assert stored_schema(json.dumps({"type": "struct", "fields": [field]})).fields[0].metadata == metadata


def fields(**field: Any) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True} | field]})


@pytest.mark.parametrize(
    "schema",
    [
        stored("no such type"),
        stored({"type": "udt"}),
        stored({"type": "udt", "pyClass": ["os", "system"]}),
        stored({"type": "array"}),
        stored({"type": ["udt"]}),
        stored(7),
        fields(name=7),
        fields(metadata={"__COLLATIONS": 7}),
        "[]",
        "{}",
        "{",
        "[" * 100_000,
        "9" * 5_000,
    ],
)
def test_stored_schema_that_cannot_be_read_is_damaged(schema: str) -> None:
    with pytest.raises((Damaged, WrongUse)):
        stored_schema(schema)


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ({"a": "long", "b": "string"}, ""),
        ({"a": "long", "b": "date"}, "column `b` is date, and was string"),
        ({"a": "long", "c": "string"}, "column 2 is `c`, and was `b`"),
        ({"a": "long"}, "column `b` is gone"),
        ({"a": "long", "b": "string", "c": "date"}, "column `c` is new"),
    ],
)
def test_first_column_that_differs_is_named(now: dict[str, str], difference: str) -> None:
    before = {"a": "long", "b": "string"}
    old, new = (
        json.dumps({"fields": [{"name": name, "type": kind, "nullable": nullable} for name, kind in columns.items()]})
        for columns, nullable in ((before, True), (now, False))
    )
    assert first_difference(old, new) == difference
