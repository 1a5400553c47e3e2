"""One flipped bit anywhere in stored rows: never other rows, and never an error of Spark that the driver cannot explain."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from airflow_checkpoint_provider.coordinator.files import check_again, verify
from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.spark.conftest import Stage
from tests.support.footers import with_footers
from tests.support.parquet import flipped

PATH = "state/clean/1-aa"
FEW, MANY = 6, 200


@pytest.fixture
def stage(spark: SparkSession, staged: Callable[[DataFrame], Stage]) -> Stage:
    """A file of columns with and without dictionaries, nulls and nesting; without the checksums of Hadoop's local file system."""
    columns = (
        "id",
        "CAST(id % 7 AS STRING) AS carrier",
        "IF(id % 3 = 0, NULL, id / 7) AS delay",
        "sha2(CAST(id AS STRING), 256) AS key",
        "array(id, id + 1) AS stops",
        "id % 2 = 0 AS late",
    )
    stage = staged(spark.range(0, 1000, 1, 1).selectExpr(*columns))
    for checksums in stage.folder.glob(".*.crc"):
        checksums.unlink()
    return stage


class Driver:
    """What a driver does with stored rows: verify them, let Spark read them, and look again at what Spark could not read."""

    def __init__(self, stage: Stage) -> None:
        home = stage.folder.parents[2]
        self.stage, self.store, self.keys = stage, LocalStore(home.parent), Keys(home.name)
        self.folder = self.keys.file_set(PATH)
        (self.file,) = with_footers(self.store, self.folder, stage.files)
        self.state = StateSnapshot(
            uid="clean", kind="stage", run="r", file_sets=(FileSet(path=PATH, files=(self.file,)),)
        )
        self.whole = self.rows()

    def rows(self) -> tuple[Row | None, int]:
        """Return a digest of all rows, and the number of those that a filter finds through the indexes of the pages."""
        frame = self.stage.read((self.file,))
        return frame.selectExpr("count(*)", "bit_xor(xxhash64(*))").first(), frame.where("id = 500").count()

    def outcome(self) -> str:
        """Return what becomes of a restore: "damaged at the restore", "damaged at the read", "unexplained", or the rows."""
        try:
            verify(self.store, self.keys, [self.state])
        except Damaged:
            return "damaged at the restore"
        try:
            rows = self.rows()
        except Exception:  # noqa: BLE001 - Spark's errors have many types
            return self._second_look()
        return "whole" if rows == self.whole else f"other rows: {rows}"

    def _second_look(self) -> str:
        try:
            check_again(self.store, self.folder, self.file)
        except Damaged:
            return "damaged at the read"
        return "unexplained"


def flips(stage: Stage, count: int, seed: int) -> Counter[str]:
    """Turn over single bits, ``count`` times in the pages or after them, and count what became of the restores."""
    driver, dice = Driver(stage), random.Random(seed)
    body = stage.first.read_bytes()
    assert driver.file.footer
    pages = len(body) - driver.file.footer.bytes
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        place = dice.randrange(*dice.choice(((0, pages), (pages, len(body)))))
        stage.first.write_bytes(flipped(body, place, dice.randrange(8)))
        outcomes[driver.outcome()] += 1
    stage.first.write_bytes(body)
    assert driver.outcome() == "whole"
    return outcomes


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_flipped_bit_is_damage_or_changes_no_row(stage: Stage, count: int) -> None:
    """Whole rows: a bit of the first four letters, or one that no reader looks at."""
    outcomes = flips(stage, count, seed=count)
    assert not outcomes.keys() - {"damaged at the restore", "damaged at the read", "whole"}, outcomes
    assert outcomes["whole"] <= count // 20
    assert outcomes["damaged at the restore"]
    assert outcomes["damaged at the read"]
