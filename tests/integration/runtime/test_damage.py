"""A damaged file of a checkpoint is named, whenever the script meets it: the attempt ends, and no retry follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import CheckpointError, Damaged, StoreMisconfigured
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.integration.runtime.conftest import Broken, Launch, Script
from tests.support.launches import Launches
from tests.support.parquet import flipped

ROWS = 20_000


def rows(root: Path, uid: str) -> Path:
    """Return the first file of the newest rows of a stage, without the checksums of Hadoop's local file system."""
    newest = max(root.glob(f"jobs/**/state/{uid}/*"), key=lambda folder: folder.stat().st_mtime)
    file = min(newest.glob("part-*.parquet"))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return file


def flip_page(file: Path) -> None:
    file.write_bytes(flipped(file.read_bytes(), file.stat().st_size // 3))


def flip_footer(file: Path) -> None:
    file.write_bytes(flipped(file.read_bytes(), file.stat().st_size - 30))


def flip_length(file: Path) -> None:
    """Let the last bytes tell another length of the footer."""
    file.write_bytes(flipped(file.read_bytes(), file.stat().st_size - 7))


def two_stages(job: CheckpointedJob) -> Any:
    """Return the rows of 'second', which were made of the rows of 'first'."""
    first = job.stage("first", job.spark.range(0, ROWS, 1, 2))
    return job.stage("second", first.selectExpr("id + 1 AS id"))


def run(attempt: CheckpointedJob, body: Callable[[CheckpointedJob], object]) -> None:
    with attempt as job:
        body(job)


def broken(job: CheckpointedJob) -> None:
    two_stages(job)
    raise Broken


def fail_after_two_stages(attempt: CheckpointedJob) -> None:
    with pytest.raises(Broken):
        run(attempt, broken)


def reading_after(hurt: Callable[[Path], object], root: Path) -> Callable[[CheckpointedJob], None]:
    """Return a script whose rows are hurt after they were verified and handed out."""

    def body(job: CheckpointedJob) -> None:
        second = two_stages(job)
        hurt(rows(root, "second"))
        job.stage("third", second.selectExpr("sum(id) AS total"))

    return body


@pytest.mark.parametrize(
    "hurt",
    [
        pytest.param(flip_page, id="a page"),
        # as the page: Spark raises, and then all is verified
        pytest.param(flip_length, id="the footer", marks=pytest.mark.slow),
        pytest.param(lambda file: file.write_bytes(file.read_bytes()[:-1]), id="the size", marks=pytest.mark.slow),
        pytest.param(Path.unlink, id="missing"),
    ],
)
def test_damage_in_the_middle_of_an_attempt_ends_it_without_retry(
    script: Script, launched: Launch, launches: Launches, hurt: Callable[[Path], object]
) -> None:
    fail_after_two_stages(launched(launches.plan()))
    with pytest.raises(SystemExit) as left:
        run(launched(launches.plan(2)), reading_after(hurt, script.root))
    assert left.value.code == ExitCode.REFUSED
    assert launches.ends()[-1] == ("failed", ExitCode.REFUSED)
    refusal = launches.refusal()
    assert refusal.startswith("chk-2 cannot be restored: state 'second': jobs/etl.totals/")
    assert ".parquet " in refusal
    assert "chk-1 is the next older one that is whole. Nothing was changed." in refusal
    assert "airflow checkpoints restore etl.totals " in refusal
    assert refusal.endswith("--from chk-1  [CKP621]")


def test_damaged_page_that_every_checkpoint_holds_is_named_at_each_retry(
    script: Script, launched: Launch, launches: Launches
) -> None:
    """The names, sizes and footers of the older checkpoint match, but it refers to the same page."""
    fail_after_two_stages(launched(launches.plan()))
    flip_page(rows(script.root, "first"))
    for try_number in (2, 3):
        with pytest.raises(SystemExit) as left:
            run(
                launched(launches.plan(try_number)),
                lambda job: job.stage("first", job.spark.range(0, ROWS, 1, 2)).selectExpr("sum(id)").collect(),
            )
        assert left.value.code == ExitCode.REFUSED
        assert "chk-2 cannot be restored: state 'first'" in launches.refusal()
        assert "there is no other one that is whole" in launches.refusal()
        assert "--from run-start" in launches.refusal()


def test_flipped_footer_is_found_before_the_script_runs(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    fail_after_two_stages(script.attempt())
    flip_footer(rows(script.root, "second"))
    for _ in range(2):
        with pytest.raises(SystemExit) as left:
            run(script.attempt(), lambda job: pytest.fail("the script began"))
        assert left.value.code == ExitCode.REFUSED
        said = capsys.readouterr().out
        assert "chk-2 cannot be restored: state 'second': " in said
        assert "has another footer than was acknowledged" in said
        assert "checkpoints restore job --from chk-1" in said


def test_damage_without_airflow_raises_what_is_damaged(script: Script) -> None:
    fail_after_two_stages(script.attempt())
    named = r"chk-2 cannot be restored: state 'second': .*\.parquet .*--from chk-1"
    with pytest.raises(Damaged, match=named) as raised:
        run(script.attempt(), reading_after(flip_page, script.root))
    assert raised.value.__cause__, "Spark's own error"
    assert not isinstance(raised.value.__cause__, CheckpointError)


def test_file_that_can_be_read_again_leaves_the_error_of_spark(
    script: Script, launched: Launch, launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    """The storage failed for a moment: a retry may help."""
    fail_after_two_stages(launched(launches.plan()))

    def body(job: CheckpointedJob) -> None:
        second = two_stages(job)
        file = rows(script.root, "second")
        whole = file.read_bytes()
        flip_page(file)
        try:
            second.selectExpr("sum(id)").collect()
        finally:
            file.write_bytes(whole)

    with pytest.raises(Exception, match="FAILED_READ_FILE") as raised:
        run(launched(launches.plan(2)), body)
    assert not isinstance(raised.value, CheckpointError)
    assert launches.ends()[-1] == ("failed", ExitCode.FAILED)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "[CKP124]" in line]
    assert "state 'second': the script failed at jobs/etl.totals/" in line
    assert "Read again, its size, footer and pages are as they were written" in line


def test_damage_that_the_script_catches_is_its_own_matter(script: Script) -> None:
    fail_after_two_stages(script.attempt())

    def body(job: CheckpointedJob) -> None:
        second = two_stages(job)
        flip_page(rows(script.root, "second"))
        with pytest.raises(Exception, match="FAILED_READ_FILE"):
            second.selectExpr("sum(id)").collect()

    run(script.attempt(), body)
    assert script.coordinator().state.attempts[-1].outcome == "finished"


# -- links ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["state", "state/second"])
def test_stage_writes_no_rows_through_a_link(script: Script, tmp_path: Path, folder: str) -> None:
    """Spark would follow it out of the root."""
    (outside := tmp_path / "outside").mkdir()

    def body(job: CheckpointedJob) -> None:
        job.value("started", "yes")
        home = next(script.root.glob("jobs/*/job"))
        (home / folder).parent.mkdir(exist_ok=True)
        (home / folder).symlink_to(outside)
        job.stage("second", job.spark.range(10))

    with pytest.raises(StoreMisconfigured, match=f"/{folder} is a symbolic link"):
        run(script.attempt(), body)
    assert list(outside.iterdir()) == []
