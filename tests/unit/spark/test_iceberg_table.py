"""The errors of an Iceberg catalog, played without Spark. Runs anywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.errors import CheckpointError, WrongUse
from airflow_checkpoint_provider.spark.queries.iceberg_table import _typed_errors

ADDRESS = "jdbc:postgresql://catalog?password=secret"


def java_error(name: str) -> Py4JJavaError:
    """Return an error of a catalog, of the Java class ``name``, whose text holds a password."""
    kind = SimpleNamespace(getSimpleName=lambda: name)
    return Py4JJavaError(f"cannot reach {ADDRESS}", SimpleNamespace(_target_id="o1", getClass=lambda: kind))


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("UncheckedSQLException", CheckpointError, "cannot use the Iceberg table lake.rows now: UncheckedSQLException"),
        ("NoSuchTableException", WrongUse, "Create it before the query starts"),
    ],
)
def test_error_of_a_catalog_does_not_tell_its_address(name: str, error: type[CheckpointError], says: str) -> None:
    with pytest.raises(error, match=says) as raised, _typed_errors("lake.rows"):
        raise java_error(name)
    assert type(raised.value) is error
    assert ADDRESS not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
