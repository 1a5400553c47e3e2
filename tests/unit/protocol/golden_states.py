"""The golden acknowledgements of single kinds of states. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol.file_records import File, FileSet, Footer
from airflow_checkpoint_provider.protocol.metadata import (
    Acknowledgement,
    FilesDetail,
    FrameDetail,
    KeyedDetail,
    LoopDetail,
    Measures,
    Metrics,
    StateSnapshot,
    digest_of_stages,
)
from airflow_checkpoint_provider.protocol.part_records import Part, PartsDetail
from airflow_checkpoint_provider.protocol.transactions import Origin, SinkDetail, Transaction
from tests.support.acknowledgements import acknowledgement, file_set, stage


def with_footers() -> Acknowledgement:
    """Return an acknowledgement whose files have the checksums of their footers."""
    clean = file_set("clean", files=1)
    files = tuple(replace(file, footer=Footer(bytes=8, checksum="9f3c01ab")) for file in clean.files)
    return acknowledgement(2, stage("clean", 2, made_of=replace(clean, files=files)))


def with_metrics() -> Acknowledgement:
    """Return an acknowledgement of a stage with the metrics of two Observations; those of the second were not kept."""
    clean = stage("clean", 2)
    assert clean.stage
    schema = '{"type":"struct","fields":[{"name":"rows","type":"long","nullable":true,"metadata":{}}]}'
    metrics = (Metrics(name="quality", schema=schema, row='{"0":10}'), Metrics(name=""))
    return acknowledgement(2, replace(clean, stage=replace(clean.stage, metrics=metrics)))


def with_files() -> Acknowledgement:
    """Return an acknowledgement of a folder of files. One of their names begins as Spark's own marks do."""
    names = ("metadata/_SUCCESS", "metadata/part-00000")
    files = tuple(
        File(name=name, bytes=size, rows=0, checksum=f"{size:064x}") for name, size in zip(names, (0, 211), strict=True)
    )
    detail = FilesDetail(
        application="d1gest", version="2", earlier_stages=digest_of_stages(["state/raw/1-a"]), stage_before="raw",
        values={"count": 7}, generation=1, local=True,
    )  # fmt: skip
    folder = StateSnapshot(
        uid="model", kind="files", run="day-1", file_sets=(FileSet(path="state/model/1-b", files=files),),
        measures=Measures(checkpoint=2, barrier="folder 'model'", work_s=4320.5, sync_s=0.25, new_bytes=211), files=detail,
    )  # fmt: skip
    return acknowledgement(2, folder)


def with_parts() -> Acknowledgement:
    """Return an acknowledgement of two stages in parts: one that a function makes and that is not whole, and one by a column."""
    days = stage("days", 2, made_of=file_set("days", files=1))
    assert days.stage
    done = Part(plan="p1an", inputs="1nputs", listed="1isted")
    of_days = PartsDetail(values=("2026-02-01", 7, ["a.csv", {"b": None}]), done=(done,), kept_s=1.5)
    shops = stage("shops", 2, made_of=file_set("shops", files=1))
    second = file_set("shops", epoch=2, files=1)
    by_shop = PartsDetail(values=(None, "north"), done=(Part(), Part()), by="shop")
    return acknowledgement(
        2,
        replace(days, kind="parts", parts=of_days),
        replace(shops, kind="parts", file_sets=(*shops.file_sets, second), parts=by_shop),
    )


def with_sinks() -> Acknowledgement:
    """Return an acknowledgement of a sink with a committed write, and one that waits."""
    origin = Origin(
        plan="p1an",
        inputs="1nputs",
        python=True,
        application="d1gest",
        earlier_stages="ear1ier",
        listed="1isted",
        generation=1,
    )
    written = Transaction(
        name="1-0123456789abcdef", version=3, run="day-1", write=0, origin=origin, rows=7, bytes=41,
        prepared={"files": ["part-0.parquet"]}, replaces=("1-00000000000000ff",), committed=True,
    )  # fmt: skip
    waits = replace(written, name="2-0123456789abcdef", version=4, write=1, replaces=(), committed=False)
    detail = SinkDetail(
        format="parquet", target="s3://lake/orders", version=4, gated=True, position="3", transactions=(written, waits)
    )
    return acknowledgement(2, StateSnapshot(uid="orders", kind="sink", run="day-1", sink=detail))


def with_loops() -> Acknowledgement:
    """Return an acknowledgement of a loop, of the done items of a history, and of the frame that both have changed."""
    rank = LoopDetail(
        application="d1gest", earlier_stages=digest_of_stages(["state/edges/1-a"]), stage_before="edges", values={"count": 7},
        generation=1, path="state/rank/1-b", turns=2, items="5feceb666b86b273", frames={"ranks": "state/ranks/1-c"},
        writes={"history": 3}, writes_before={"history": 1}, own_values=("count",),
    )  # fmt: skip
    days = LoopDetail(
        application="d1gest",
        path="state/days/1-d",
        turns=1,
        began=1,
        frames={"ranks": "state/ranks/1-e"},
        stage_before="rank",
    )
    ranks = FrameDetail(schemas=("{}", "{}", "{}"), codec="zstd", began="state/ranks/1-0")
    rows = [
        FileSet(path=f"state/ranks/1-{name}", files=(File(name="part-0", bytes=41, rows=7),))
        for name in ("0", "c", "e")
    ]
    return acknowledgement(
        2,
        StateSnapshot(uid="rank", kind="loop", run="day-1", value={"turns": 2}, loop=rank),
        StateSnapshot(uid="days", kind="once", run="day-1", value=["mon", ["tue", 1]], loop=days),
        StateSnapshot(uid="ranks", kind="frame", run="day-1", file_sets=tuple(rows), frame=ranks),
    )


def with_keyed() -> Acknowledgement:
    """Return an acknowledgement of a table by key: all rows, and two snapshots of changes."""
    names = ("0", "c", "e")
    rows = [FileSet(path=f"state/totals/1-{name}", files=(File(name="part-0", bytes=41, rows=7),)) for name in names]
    keyed = KeyedDetail(
        key=("carrier", "origin"), max_parallelism=128,
        on={"state/totals/1-c": "state/totals/1-0", "state/totals/1-e": "state/totals/1-c"},
    )  # fmt: skip
    frame = FrameDetail(schemas=("{}", "{}", "{}"), codec="zstd", began="state/totals/1-c")
    return acknowledgement(
        2, StateSnapshot(uid="totals", kind="keyed", run="day-1", file_sets=tuple(rows), frame=frame, keyed=keyed)
    )
