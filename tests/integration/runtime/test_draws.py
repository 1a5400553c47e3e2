"""Stages that share what Spark draws, or what follows from partitions: after a retry their rows still fit together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import DrawsDiffer
from airflow_checkpoint_provider.protocol.metadata import StageDetail
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.stages import stage as stage_module
from airflow_checkpoint_provider.spark.stages.partitions import changed_partitions
from airflow_checkpoint_provider.spark.stages.plan import fingerprint
from tests.integration.runtime.conftest import Script
from tests.support.drawings import BY_PARTITION, DRAWN, ROWS, SPLIT, Drawing, write_rows
from tests.support.parts import parts

KEPT = "holds values that Spark drew in an earlier attempt"


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows in several files, which other confs split otherwise."""
    folder = str(tmp_path_factory.mktemp("rows") / "in")
    write_rows(spark, folder)
    return folder


@pytest.fixture
def rows(spark: SparkSession, folder: str) -> Callable[[], DataFrame]:
    return lambda: spark.read.parquet(folder)


@contextmanager
def conf(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def pairs(stage: DataFrame) -> list[tuple[int, str]]:
    return sorted((row["id"], str(row["d"])) for row in stage.collect())


def source(frame: DataFrame, as_function: bool) -> DataFrame | Callable[[], DataFrame]:
    return (lambda: frame) if as_function else frame


SEEDED: dict[str, Callable[[DataFrame, int], DataFrame]] = {
    "sample": lambda df, seed: df.sample(False, 0.5, seed),
    "randomSplit": lambda df, seed: df.randomSplit([0.5, 0.5], seed)[0],
    "sampleBy": lambda df, seed: df.sampleBy(F.col("id") % 2, {0: 0.5, 1: 0.5}, seed),
    "uuid": lambda df, seed: df.withColumn("u", F.expr(f"uuid({seed})")),
    "shuffle": lambda df, seed: df.withColumn("s", F.expr(f"shuffle(xs, {seed})")),
    "rand": lambda df, seed: df.where(F.rand(seed) < 0.5),
}


def each(fast: set[str]) -> list[Any]:
    """Each way to draw; those that are not ``fast`` are slow tests."""
    marks: dict[bool, tuple[pytest.MarkDecorator, ...]] = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(way, id=name, marks=marks[name in fast]) for name, way in (DRAWN | BY_PARTITION).items()]


@pytest.mark.parametrize("drawing", each({"rand"}))
def test_stages_that_share_a_draw_fit_together_after_a_retry(
    script: Script, rows: Callable[[], DataFrame], drawing: Drawing
) -> None:
    fit_together_after_a_retry(script, rows, drawing, as_function=False)


@pytest.mark.parametrize("drawing", each({"uuid"}))
def test_functions_that_share_a_draw_fit_together_after_a_retry(
    script: Script, rows: Callable[[], DataFrame], drawing: Drawing
) -> None:
    fit_together_after_a_retry(script, rows, drawing, as_function=True)


def fit_together_after_a_retry(
    script: Script, rows: Callable[[], DataFrame], drawing: Drawing, as_function: bool
) -> None:
    with script.failing() as job:
        first = pairs(job.stage("one", source(drawing(rows()).select("id", "d"), as_function)))
    again = script.recomputes("one")
    with script.attempt() as job:
        drawn = drawing(rows())
        one = job.stage("one", source(drawn.select("id", "d"), as_function))
        other = job.stage("other", source(drawn.select("id", "d"), as_function))
        both = job.stage(
            "both", one.alias("a").join(other.alias("b"), "id").select("id", "a.d", F.col("b.d").alias("e"))
        )
        assert pairs(one) == pairs(other) == first
        assert both.where(~F.col("d").eqNullSafe(F.col("e"))).count() == 0
        assert both.count() == len(first)
    assert not again(), "what is shared with nobody would be computed again, too"


@pytest.mark.parametrize("drawing", each({"monotonically_increasing_id"}))
def test_stages_fit_together_if_the_retry_splits_its_files_otherwise(
    script: Script, rows: Callable[[], DataFrame], drawing: Drawing, capsys: pytest.CaptureFixture[str]
) -> None:
    with script.failing() as job:
        job.stage("one", drawing(rows()).select("id", "d"))
    with conf(script.spark, SPLIT, "700b"), script.attempt() as job:
        drawn = drawing(rows())
        assert pairs(job.stage("one", drawn.select("id", "d"))) == pairs(job.stage("other", drawn.select("id", "d")))
    assert re.search(
        rf"Its rows depend on partitions .*({SPLIT}|partitions of RDD 1) changed: .*CKP121", capsys.readouterr().out
    )


def test_numbers_of_an_rdd_depend_on_its_partitions(spark: SparkSession) -> None:
    numbered = spark.sparkContext.parallelize([7], 1).zipWithIndex().toDF("id long, d long")
    facts = fingerprint(numbered, {}).partitions
    assert (facts["function"], facts["partitions of RDD 1"]) == ("zipwithindex", "1")


@pytest.mark.parametrize(
    "number",
    [
        "monotonically_increasing_id()",
        "rand(5)",
        "(select max(r) from (select rand(6) r from range(0, 9, 1, {parts})))",
    ],
)
def test_another_number_of_partitions_of_a_range_counts(spark: SparkSession, number: str) -> None:
    def facts(parts: int) -> dict[str, str]:
        numbers = spark.range(0, 20, 1, parts).withColumn("key", F.expr(number.format(parts=parts)))
        return fingerprint(numbers, {}).partitions

    assert "partitions of range 1 changed: 2 → 5" in changed_partitions(facts(2), facts(5))
    assert not changed_partitions(facts(2), facts(2))


def test_rows_of_a_range_that_do_not_depend_on_its_partitions_stay(spark: SparkSession) -> None:
    one, other = (fingerprint(spark.range(0, 20, 1, parts), {}) for parts in (2, 5))
    assert one == other
    assert not changed_partitions(one.partitions, other.partitions)


@pytest.mark.parametrize(
    "seed", [None, pytest.param(20261125000000, marks=pytest.mark.slow)]
)  # a long seed is in the test below
def test_halves_of_a_split_are_disjoint_and_complete_after_a_retry(
    script: Script, rows: Callable[[], DataFrame], seed: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with script.failing() as job:
        train, _ = rows().randomSplit([0.7, 0.3], seed)
        job.stage("train", train.select("id"))
    with script.attempt() as job:
        train, test = rows().randomSplit([0.7, 0.3], seed)
        halves = [job.stage("train", train.select("id")), job.stage("test", test.select("id"))]
        ids = [row["id"] for half in halves for row in half.collect()]
    assert sorted(ids) == list(range(ROWS))
    out = capsys.readouterr().out
    assert (out.count(KEPT) == 1) == (seed is None)
    assert ("stage 'test' is computed with the values that Spark drew for stage 'train'." in out) == (seed is None)


@pytest.mark.parametrize(
    "drawing",
    [
        # one that is a node of the plan, and one that is a column
        pytest.param(drawing, id=name, marks=() if name in ("sample", "uuid") else pytest.mark.slow)
        for name, drawing in SEEDED.items()
    ],
)
def test_a_long_seed_that_was_corrected_in_the_script_counts(
    script: Script, rows: Callable[[], DataFrame], drawing: Callable[[DataFrame, int], DataFrame]
) -> None:
    with script.failing() as job:
        job.stage("half", drawing(rows(), 20261125000000))
    script.change("another seed")
    again = script.recomputes("half")
    with script.attempt() as job:
        corrected = job.stage("half", drawing(rows(), 20261126000001))
        assert sorted(corrected.collect()) == sorted(drawing(rows(), 20261126000001).collect())
    assert again()


def test_partner_of_a_stage_that_is_computed_again_is_computed_again_too(
    script: Script, rows: Callable[[], DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    def split(job: CheckpointedJob, least: int) -> list[DataFrame]:
        train, test = rows().randomSplit([0.7, 0.3])
        return [
            job.stage("train", train.where(F.col("id") >= least).select("id")),
            job.stage("test", test.select("id")),
            job.stage("alone", rows().select("id", F.expr("uuid()").alias("u"))),
        ]

    with script.failing() as job:
        alone = sorted(split(job, 0)[2].collect())
    script.change("another filter")
    with script.attempt() as job:
        train, test, last = split(job, 10)
        ids = [row["id"] for half in (train, test.where("id >= 10")) for row in half.collect()]
        assert sorted(ids) == list(range(10, ROWS))
        assert sorted(last.collect()) == alone, "nobody shares its values"
    assert (
        "stage 'test': recomputed. It shares values that Spark draws with stage 'train', which was computed again.  [CKP121]"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "inputs", ["auto", pytest.param("keep", marks=pytest.mark.slow)]
)  # how="version" below is refused in the same way
def test_numbered_rows_of_inputs_that_moved_do_not_stand_beside_new_ones(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str], inputs: str
) -> None:
    """A file that came between two tries moves the numbers. Kept rows have draws that no other stage can have."""
    spark, folder = script.spark, str(tmp_path / "landing")
    spark.range(ROWS).repartition(2).write.parquet(folder)

    def keyed(job: CheckpointedJob, uid: str) -> list[tuple[int, str]]:
        frame = spark.read.parquet(folder).withColumn("d", F.expr("uuid()"))
        return pairs(job.stage(uid, frame.select("id", "d"), inputs=inputs))

    with script.failing() as job:
        keyed(job, "one")
    spark.range(ROWS, 2 * ROWS).coalesce(1).write.mode("append").parquet(folder)
    frame = spark.read.parquet(folder).withColumn("d", F.expr("uuid()"))

    def both(job: CheckpointedJob) -> list[list[tuple[int, str]]]:
        return [pairs(job.stage(uid, frame.select("id", "d"), inputs=inputs)) for uid in ("one", "other")]

    if inputs == "keep":
        with pytest.raises(DrawsDiffer), script.attempt() as job:
            both(job)
    with script.attempt() as job:
        one, other = both(job)
    assert one == other
    assert len(one) == 2 * ROWS
    if inputs == "auto":
        assert (
            "stage 'one': recomputed. Its rows depend on partitions (uuid), and its inputs moved: "
            in capsys.readouterr().out
        )


def test_third_attempt_has_the_draws_of_the_first(script: Script, rows: Callable[[], DataFrame]) -> None:
    def keyed(job: CheckpointedJob, count: int) -> list[list[tuple[int, str]]]:
        frame = rows().withColumn("d", F.expr("uuid()")).select("id", "d")
        return [pairs(job.stage(f"part {i}", frame)) for i in range(count)]

    with script.failing() as job:
        keyed(job, 1)
    with script.failing() as job:
        keyed(job, 2)
    with script.attempt() as job:
        one, two, three = keyed(job, 3)
    assert one == two == three


@pytest.mark.parametrize("how", [pytest.param("copy", marks=pytest.mark.slow), "version"])  # both are refused alike
def test_both_are_computed_by_the_next_attempt_if_the_draw_cannot_be_handed_on(
    script: Script, rows: Callable[[], DataFrame], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Spark does not copy a plan exactly; or the author keeps rows of another plan by ``version=``, so nobody knows the draw."""

    def keyed(job: CheckpointedJob, more: int = 0) -> list[list[tuple[int, str]]]:
        frame = rows().withColumn("d", F.expr("uuid()"))
        one = job.stage("one", frame.select("id", "d", F.lit(more).alias("more")), version="1")
        return [pairs(one), pairs(job.stage("other", frame.select("id", "d")))]

    with script.failing() as job:
        frame = rows().withColumn("d", F.expr("uuid()"))
        job.stage("one", frame.select("id", "d", F.lit(0).alias("more")), version="1")
    with monkeypatch.context() as patch:
        if how == "copy":
            patch.setattr(stage_module, "reseeded", lambda df, seeds: None)
        else:
            script.change("another literal")
        with pytest.raises(DrawsDiffer, match="Start the job again: it computes both"), script.attempt() as job:
            keyed(job, more=int(how == "version"))
    assert not DrawsDiffer.permanent, "a retry mends it"
    reader = script.coordinator()
    newest = reader.state.checkpoint(reader.state.newest_completed)
    assert newest
    assert not reader.read_seal(newest).states.keys() & {"one", "other"}
    again = script.recomputes("one")
    with script.attempt() as job:
        one, other = keyed(job, more=int(how == "version"))
    assert again()
    assert one == other


def test_numbers_of_a_sorted_frame_do_not_depend_on_partitions(script: Script, rows: Callable[[], DataFrame]) -> None:
    with script.failing() as job:
        job.stage("top", rows().orderBy("id").limit(3))
    again = script.recomputes("top")
    with conf(script.spark, SPLIT, "700b"), script.attempt() as job:
        job.stage("top", rows().orderBy("id").limit(3))
    assert not again()


def test_stored_detail_holds_draws_and_what_made_the_partitions(script: Script, rows: Callable[[], DataFrame]) -> None:
    def detail(job: CheckpointedJob, uid: str) -> StageDetail:
        stored = parts(job).states.snapshots[uid].stage
        assert stored
        return stored

    with script.attempt() as job:
        job.stage("plain", rows())
        job.stage("drawn", rows().withColumn("d", F.rand()))
        assert (detail(job, "plain").draws, detail(job, "plain").partitions) == ((), {})
        drawn = detail(job, "drawn")
        assert len(drawn.draws) == 1
        assert drawn.partitions["function"] == "rand"
        assert drawn.partitions["cores"] == "2"


def test_draws_that_cannot_be_seen_are_named(
    script: Script, rows: Callable[[], DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was drawn before Spark's own checkpoint, or inside of an RDD."""

    def stages(job: CheckpointedJob, count: int) -> None:
        keyed = rows().withColumn("d", F.expr("uuid()")).localCheckpoint()
        sampled = rows().select("id").rdd.sample(False, 0.5).toDF()
        for part in range(count):
            job.stage(f"keyed {part}", keyed)
            job.stage(f"sampled {part}", sampled)

    with script.failing() as job:
        stages(job, 1)
    assert "CKP128" not in capsys.readouterr().out
    with script.attempt() as job:
        stages(job, 2)
    out = capsys.readouterr().out
    assert "stage 'keyed 1' reads a frame that Spark has checkpointed, as the reused stage 'keyed 0' does." in out
    assert "stage 'sampled 0' holds a sample of an RDD." in out


# -- names that libraries draw -----------------------------------------------------------------------------------------


def test_names_that_a_library_draws_for_views_do_not_count(script: Script, rows: Callable[[], DataFrame]) -> None:
    def stages(job: CheckpointedJob, name: str) -> None:
        job.stage("sql", job.spark.sql("select id + 1 as id from {df} where id > 3", df=rows()))
        rows().createOrReplaceTempView(f"tmp_{name}")
        job.stage("view", job.spark.table(f"tmp_{name}").where("id > 3"))

    with script.failing() as job:
        stages(job, "0b9c")
    computed = [script.recomputes(uid) for uid in ("sql", "view")]
    with script.attempt() as job:
        stages(job, "77d1")
    assert not any(again() for again in computed)


def test_other_rows_in_a_view_of_another_name_count(script: Script, rows: Callable[[], DataFrame]) -> None:
    def stage(job: CheckpointedJob, least: int) -> int:
        return job.stage("sql", job.spark.sql("select * from {df}", df=rows().where(F.col("id") >= least))).count()

    with script.failing() as job:
        stage(job, 0)
    with script.attempt() as job:
        assert stage(job, 10) == ROWS - 10


def test_drawn_name_of_a_column_is_said(
    script: Script, rows: Callable[[], DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    for attempt, name in (
        (script.failing, "StringIndexer_0123456789ab__output"),
        (script.attempt, "StringIndexer_ba9876543210__output"),
    ):
        with attempt() as job:
            assert job.stage("indexed", rows().withColumn(name, F.lit(1))).columns[-1] == name
    assert "is drawn anew by each driver. Give it a name: alias(), setOutputCol().  [CKP121]" in capsys.readouterr().out


def test_uid_of_a_transformer_inside_a_plan_does_not_count(script: Script, rows: Callable[[], DataFrame]) -> None:
    def stage(job: CheckpointedJob, uid: str) -> None:
        inner = rows().withColumn(f"Tokenizer_{uid}__output", F.col("id") + 1)
        job.stage("indexed", inner.select((F.col(f"Tokenizer_{uid}__output") * 2).alias("twice")))

    with script.failing() as job:
        stage(job, "0123456789ab")
    again = script.recomputes("indexed")
    with script.attempt() as job:
        stage(job, "ba9876543210")
    assert not again()
