"""Stages that share what Spark draws, in drivers that are killed between them: by each release of Spark, also with other cores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.drawings import BY_PARTITION, DRAWN, SPLIT, write_rows
from tests.support.runs import Ended, Home
from tests.support.sparks import python_with_spark

OTHERWISE = {"spark.master": "local[3]", SPLIT: "700b"}
PARTS = 2 * len(DRAWN | BY_PARTITION)


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("rows") / "in")
    write_rows(spark, folder)
    return folder


def lives(home: Home, folder: str, confs: dict[str, str]) -> tuple[Ended, Ended]:
    """Run three attempts; the first two kill themselves. Return the last two. ``confs`` come with the second attempt."""
    home.env["DRAWS_INPUT"] = folder
    first = home.run()
    assert (first.code, len(first.computed)) == (-9, PARTS + 1), first.log
    second, third = home.run(confs=confs), home.run(confs=confs)
    assert second.code == -9, second.log
    assert third.code == 0, third.log
    assert third.result["torn"] == []
    assert "shared with nobody" not in (*second.computed, *third.computed)
    return second, third


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", ["installed", "4.1", "4.0"])
def test_stages_fit_together_after_kills(folder: str, tmp_path: Path, release: str) -> None:
    python = sys.executable if release == "installed" else python_with_spark(release)
    second, third = lives(Home(tmp_path / "home", "draws.py", python=python), folder, {})
    computed = [*second.computed, *third.computed]
    assert all(uid.endswith(": other") for uid in computed), "each first half is reused"
    assert len(computed) == len(set(computed)) == PARTS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_stages_fit_together_after_kills_with_other_cores_and_splits(folder: str, tmp_path: Path) -> None:
    second, _ = lives(Home(tmp_path / "home", "draws.py"), folder, OTHERWISE)
    again = [uid.removesuffix(": one") for uid in second.computed if uid.endswith(": one")]
    assert {name for name in BY_PARTITION if name not in again} == set()
