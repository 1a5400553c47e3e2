"""Stages that read tables with versions: Delta, and Iceberg on Spark 4.1. Runs on Linux."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.integration.runtime.tables import on_delta, on_iceberg
from tests.support.iceberg import Lake
from tests.support.jars import NoJars
from tests.support.runs import Ended, Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

OLD, NEW = [0], [0, 10, 20]
DELTA_WAYS = (
    "versionAsOf",
    "timestampAsOf",
    "sql-version",
    "sql-timestamp",
    "path-version",
    "path-timestamp",
    "sql-path",
    "table",
    "path",
    "changes",
)
REFUSED = ("snapshot-id", "as-of-timestamp", "tag")
"""Options that older releases of Iceberg had."""
ICEBERG_WAYS = (
    "sql-version",
    "sql-timestamp",
    "sql-tag",
    "sql-branch",
    "branch-name",
    "snapshot-id",
    "as-of-timestamp",
    "tag",
    "branch",
    "versionAsOf",
    "timestampAsOf",
    "loaded",
    "selected",
    "selected-tag",
)


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("delta")
    home = on_delta(folder / "home", "versions.py", VERSIONS="delta", VERSIONS_TABLE=str(folder / "table"))
    return succeeded(home)


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("iceberg")
    lake = Lake(folder / "lake")
    try:
        home = on_iceberg(folder / "home", lake, "versions.py")
    except NoJars as error:
        pytest.skip(str(error))
    home.env |= {"VERSIONS": "iceberg", "VERSIONS_TABLE": lake.table}
    home.confs["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    return succeeded(home)


def succeeded(home: Home) -> Ended:
    ended = home.run(patience=1200)
    assert ended.code == 0, ended.log
    return ended


def line(ended: Ended, uid: str, code: str) -> str:
    (found,) = [line for line in ended.log.splitlines() if line.startswith(f"stage '{uid}'") and f"[{code}]" in line]
    return found


def reused(ended: Ended, uid: str) -> int:
    return len(re.findall(rf"^stage '{re.escape(uid)}': reused", ended.log, re.MULTILINE))


@pytest.mark.parametrize("way", DELTA_WAYS)
def test_version_of_a_delta_table_that_the_script_names_is_part_of_the_plan(delta: Ended, way: str) -> None:
    same, other, said = delta.result[way]
    assert (same, other) == (True, False)
    assert way in ("path", "changes") or said == "its input: `version 0` → `version 2`"


@pytest.mark.parametrize("way", ICEBERG_WAYS)
def test_version_of_an_iceberg_table_that_the_script_names_is_part_of_the_plan(iceberg: Ended, way: str) -> None:
    if way in REFUSED:
        assert "no longer supported" in iceberg.result[way]
        return
    assert iceberg.result[way][:2] == [True, False]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_corrected_version_is_computed_though_the_application_is_the_same(
    kind: str, request: pytest.FixtureRequest
) -> None:
    ended: Ended = request.getfixturevalue(kind)
    assert ended.result["named"] == [OLD, OLD, NEW]
    assert reused(ended, "named") == 1
    assert "recomputed. Its plan changed: its input: " in line(ended, "named", "CKP121")


def grown(result: dict[str, Any]) -> list[list[list[int]]]:
    return [result[case] for case in ("kept", "compared", "corrected")]


def check_growth(ended: Ended) -> None:
    kept = [NEW, NEW]
    compared = [[*NEW, 100], [*NEW, 100, 101]]
    corrected = [[*NEW, 100, 101], [*NEW, 100, 101, 102]]
    assert grown(ended.result) == [kept, compared, corrected]
    assert " is at version " in line(ended, "kept", "CKP127")
    assert "recomputed. Its inputs moved: " in line(ended, "compared", "CKP121")
    assert "recomputed. The application changed, and its inputs moved: " in line(ended, "corrected", "CKP121")


def test_newest_version_of_a_delta_table_moves(delta: Ended) -> None:
    check_growth(delta)
    assert " is at version 3, and was at 2. To compute it again" in line(delta, "kept", "CKP127")


def test_newest_version_of_an_iceberg_table_moves(iceberg: Ended) -> None:
    check_growth(iceberg)


def test_delta_refuses_a_stream_from_a_path_with_a_version(delta: Ended) -> None:
    assert "Cannot time travel views, subqueries, streams" in delta.result["stream"]
