"""Queries whose state gets another number of partitions, and that go on with the same rows. Runs on Linux."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import Damaged, NotSupportedYet
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.location.rescaling import PARTITIONS, take_state
from airflow_checkpoint_provider.spark.queries.location import rescaling
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.integration.runtime.streams import partitions_of
from tests.jobs.matrix import CHANGELOG, PROVIDER, STORES, query
from tests.support.streams import add_files, expected_keys, rows_in, sink_log

Query = tuple[str, str]
"""A kind of state, and a state store."""


@pytest.fixture
def confs(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session, whose confs are as before afterwards."""
    before = str(spark.conf.get(PARTITIONS))
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    yield spark
    spark.conf.set(PARTITIONS, before)
    for name in (PROVIDER, CHANGELOG, "spark.sql.streaming.fileSink.log.compactInterval"):
        spark.conf.unset(name)


def run(
    script: Script, out: Path, partitions: int, of: Query = ("dedup", "changelog"), *, rescale: bool = True
) -> None:
    """Run the query ``of`` the matrix from ``out-in`` to ``out``, to the end of what is there."""
    operator, store = of
    for name, value in (STORES[store] | {PARTITIONS: str(partitions)}).items():
        script.spark.conf.set(name, value)
    with script.attempt() as job:
        rows = query(job, operator, str(out))
        writer = rows.writeStream.format("parquet").option("path", str(out)).trigger(availableNow=True)
        job.start_query("rows", writer, rescale=rescale)


def location(script: Script) -> Location:
    """Return the location of the query."""
    coordinator = script.coordinator()
    found = coordinator.state.query("rows")
    assert found
    return Location(LocalStore(script.root), coordinator.keys.file_set(found.newest.path))


@pytest.mark.slow
def test_state_is_divided_again_and_again(confs: SparkSession, script: Script, tmp_path: Path) -> None:
    """The log of the sink is compacted between."""
    out = tmp_path / "out"
    for runs, partitions in enumerate((2, 5, 3), 1):
        add_files(tmp_path / "out-in", *range(6 * (runs - 1), 6 * runs))
        run(script, out, partitions)
        assert rows_in(out, "key") == expected_keys(6 * runs)
        assert partitions_of(location(script)) == partitions
    assert (
        max(sink_log(out)) == 11
    )  # three batches with rows and one without in each run, as if nothing had been rescaled


@pytest.mark.slow  # test_preflight.py names the number that stays
def test_number_stays_without_rescale(confs: SparkSession, script: Script, tmp_path: Path) -> None:
    for runs, partitions in enumerate((2, 5)):
        add_files(tmp_path / "out-in", runs)
        run(script, tmp_path / "out", partitions, rescale=False)
    assert partitions_of(location(script)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "of", [("totals", "rocksdb"), ("totals", "changelog"), ("join", "rocksdb"), ("count", "changelog")]
)
def test_each_kind_of_state_goes_on_with_the_same_rows(
    confs: SparkSession, script: Script, tmp_path: Path, of: Query
) -> None:
    """A query that keeps its number comes to the same rows, batch by batch."""
    batches = dict[str, list[list[str]]]()
    for name, numbers in (("rescaled", (2, 5, 3)), ("kept", (2, 2, 2))):
        out = tmp_path / name
        for runs, partitions in enumerate(numbers):
            add_files(tmp_path / f"{name}-in", *range(4 * runs, 4 * (runs + 1)))
            run(script, out, partitions, of)
        batches[name] = [
            sorted(map(str, script.spark.read.parquet(*map(str, files)).collect())) if files else []
            for files in sink_log(out).values()
        ]
        assert partitions_of(location(script)) == numbers[-1]
        shutil.rmtree(script.root)
    assert batches["rescaled"] == batches["kept"]
    assert any(batches["kept"])


@pytest.mark.slow  # test_preflight.py names a store that cannot be divided; the refusal below
def test_state_of_another_store_is_refused(confs: SparkSession, script: Script, tmp_path: Path) -> None:
    """It goes on with the number that it has."""
    out, hdfs = tmp_path / "out", ("dedup", "hdfs")
    add_files(tmp_path / "out-in", 0)
    run(script, out, 2, hdfs)
    confs.conf.unset(PROVIDER)
    with pytest.raises(
        NotSupportedYet, match=r"HDFSBackedStateStoreProvider, .* Set spark.sql.shuffle.partitions to 2"
    ):
        run(script, out, 5, hdfs)
    add_files(tmp_path / "out-in", 1)
    run(script, out, 2, hdfs)
    assert rows_in(out, "key") == expected_keys(2)


@pytest.mark.slow  # test_state_that_is_not_the_same_is_refused
def test_state_in_one_partition_is_refused(confs: SparkSession, script: Script, tmp_path: Path) -> None:
    """A limit has it so, whatever Spark writes down."""
    for name, value in STORES["rocksdb"].items():
        confs.conf.set(name, value)

    def limited(partitions: int) -> None:
        confs.conf.set(PARTITIONS, str(partitions))
        with script.attempt() as job:
            rows = job.spark.readStream.schema("id long, key string").json(f"{tmp_path}/out-in").limit(40)
            writer = rows.writeStream.format("parquet").option("path", f"{tmp_path}/out").trigger(availableNow=True)
            job.start_query("rows", writer, rescale=True)

    add_files(tmp_path / "out-in", 0)
    limited(2)
    with pytest.raises(NotSupportedYet, match=r"a limit, has all of its state in one partition"):
        limited(5)
    add_files(tmp_path / "out-in", 1)
    limited(2)
    assert len(rows_in(tmp_path / "out")) == 40


def test_state_that_is_not_the_same_is_refused(
    confs: SparkSession, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition holds the rows of another one."""

    def mixed_up(draft: Location, own: Location, batch: int, partitions: int) -> None:
        take_state(draft, own, batch, partitions)
        folder = script.root / own.key / "state" / "0"
        shutil.rmtree(folder / "1")
        shutil.copytree(folder / "0", folder / "1")

    out = tmp_path / "out"
    add_files(tmp_path / "out-in", 0)
    run(script, out, 2)
    monkeypatch.setattr(rescaling, "take_state", mixed_up)
    with pytest.raises(Damaged, match=r"in 3 partitions its state is not the same: dedupe 0, default: \d+ rows"):
        run(script, out, 3)
    monkeypatch.setattr(rescaling, "take_state", take_state)
    add_files(tmp_path / "out-in", 1)
    run(script, out, 3)
    assert rows_in(out, "key") == expected_keys(2)
