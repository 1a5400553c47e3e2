"""Delta and Iceberg tables that have lost what a query reads again, after VACUUM, log retention and expired snapshots. Runs on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.runtime.tables import on_delta, on_iceberg
from tests.support.iceberg import Lake
from tests.support.jars import NoJars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_delta_table_is_asked_for_commits_and_files(tmp_path: Path) -> None:
    """A file that the table holds no more is there until VACUUM."""
    home = on_delta(tmp_path / "home", "table_rows.py")
    ended = home.run()
    assert ended.code == 0, ended.log
    found, table = ended.result, f"file:{home.out}/table"
    assert found["all there"] == found["optimized"] == found["goes on"] == []
    (vacuumed,) = found["vacuumed"]
    assert (
        f"its table {table} does not have all rows since batch 0: 2 of the 2 files that it reads again were deleted: "
        in vacuumed
    )
    assert f"{table[:5]}//{table[5:]}/part-" in vacuumed
    assert found["ignored"] == [f"{vacuumed}. Spark skips them, because spark.sql.files.ignoreMissingFiles=true"]
    (cleaned,) = found["cleaned"]
    assert "its log begins with version 4, and the query reads on at version 2" in cleaned
    (anew,) = found["made anew"]
    assert "it was deleted or made anew" in anew


@pytest.mark.parametrize("by_name", ["", "1"], ids=["load", "table"])
def test_iceberg_table_is_asked_for_snapshots(tmp_path: Path, by_name: str) -> None:
    lake = Lake(tmp_path / "lake")
    try:
        home = on_iceberg(tmp_path / "home", lake, "table_rows.py")
    except NoJars as error:
        pytest.skip(str(error))
    home.env |= {"TABLE": lake.table, "BY_NAME": by_name}
    ended = home.run()
    assert ended.code == 0, ended.log
    found = ended.result
    assert found["all there"] == found["begins again"] == found["goes on"] == []
    (expired,) = found["expired"]
    assert f"its table {lake.table} does not have all rows since batch 0: the table begins with snapshot " in expired
    assert ", and the query reads on after snapshot " in expired
    (beginning,) = found["its beginning has expired"]
    assert f"its table {lake.table} does not have all rows: the table begins with snapshot " in beginning
    assert ", and the query reads snapshot " in beginning
