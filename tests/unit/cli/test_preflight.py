"""``preflight``: with which checkpoint a script is compared, and what is said of its answer."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.preflight import PREFLIGHT_VARIABLE, PreflightResult, QueryFit
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.unit.cli.conftest import ORDERS, Command
from tests.unit.cli.kafka_jobs import save

CLICKS = "orders"  # a job with a streaming query

FITS = (QueryFit("orders"), QueryFit("new", note="begins anew"))
DIFFERS = QueryFit("clicks", ("it writes to json", "source 0 reads /b"))


@pytest.fixture
def streams(job: Job) -> Job:
    save(job)
    return job


def script(*fits: QueryFit) -> list[str]:
    """Return a command that answers so, and says with what it was to be compared."""
    text = (
        f"import os, json, pathlib; order = json.loads(os.environ[{PREFLIGHT_VARIABLE!r}]); print('noise');"
        f" pathlib.Path(order['answer']).write_text({PreflightResult('chk', fits).to_json()!r}.replace('chk', order['source']))"
    )
    return ["--", sys.executable, "-c", text]


def test_queries_that_fit_are_ok(streams: Job, checkpoints: Command) -> None:
    done = checkpoints("preflight", CLICKS, "--yes", *script(*FITS))
    assert done.code == 0
    assert [line.split(maxsplit=2) for line in done.lines[1:]] == [["orders", "ok"], ["new", "ok", "begins anew"]]


def test_query_that_does_not_fit_is_refused(streams: Job, checkpoints: Command) -> None:
    done = checkpoints("preflight", CLICKS, "--yes", "-o", "json", *script(*FITS, DIFFERS))
    assert done.code == 3
    assert "query 'clicks' does not fit" in done.err
    found = json.loads(done.out)
    assert found["queries"][2]["differences"] == list(DIFFERS.differences)
    assert found["checkpoint"] == "latest"


def test_query_that_could_not_be_compared_is_unknown_and_is_not_refused(streams: Job, checkpoints: Command) -> None:
    unknown = QueryFit("clicks", unknown="Kafka does not say which rows it has [CKP406]")
    done = checkpoints("preflight", CLICKS, "--yes", *script(*FITS, unknown))
    assert done.code == 1
    assert done.err.splitlines()[-1] == f"query 'clicks' could not be compared: {unknown.unknown} [CKP608]"
    assert done.lines[-1].split(maxsplit=2) == ["clicks", "unknown", unknown.unknown]
    other = QueryFit("views", DIFFERS.differences, unknown=unknown.unknown)
    assert checkpoints("preflight", CLICKS, "--yes", *script(unknown, other)).code == 3


def test_script_that_does_not_answer_has_failed(streams: Job, checkpoints: Command) -> None:
    command = [sys.executable, "-c", "raise SystemExit(7)"]
    done = checkpoints("preflight", CLICKS, "--yes", "--", *command)
    assert done.code == 1
    assert f"`{shlex.join(command)}` ended with exit code 7" in done.err
    assert done.err.rstrip().endswith("its output says why. The job was not touched [CKP608]")


def test_command_that_cannot_be_started_is_said_alone(streams: Job, checkpoints: Command) -> None:
    done = checkpoints("preflight", CLICKS, "--yes", "--", "/nowhere/submit", "x")
    said = "`/nowhere/submit x` could not be started: No such file or directory. The job was not touched [CKP608]"
    assert (done.code, done.err.splitlines()[-1]) == (1, said)


def test_nothing_cannot_be_compared(streams: Job, checkpoints: Command) -> None:
    """It would silently mean the newest checkpoint."""
    done = checkpoints("preflight", CLICKS, "--from", "none", "--yes", *script(*FITS))
    assert (done.code, done.out) == (2, "")
    assert '"none" holds no query' in done.err


def test_command_without_dashes_before_it_is_told_of_them(
    streams: Job, checkpoints: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        checkpoints("preflight", CLICKS, "--yes", "spark-submit", "--master", "local", "app.py")
    assert capsys.readouterr().err.rstrip().endswith("Write -- before the command")


@pytest.mark.parametrize("source", ["latest", "chk-2"])
def test_checkpoint_without_a_query_has_nothing_to_compare_and_the_script_is_not_started(
    lake: LocalStore, checkpoints: Command, tmp_path: Path, source: str
) -> None:
    written = tmp_path / "written"
    done = checkpoints(
        "preflight", ORDERS, "--from", source, "--", sys.executable, "-c", f"open({str(written)!r}, 'w')"
    )
    assert (done.code, done.out, written.exists()) == (4, "", False)
    assert "holds no streaming query, so nothing can be compared. The script was not started." in done.err
    assert "[CKP625]" in done.err


def test_job_without_a_checkpoint_is_not_found(lake: LocalStore, checkpoints: Command) -> None:
    assert checkpoints("preflight", "etl.other", *script()).code == 4
    assert checkpoints("preflight", ORDERS, "--from", "chk-99", *script()).code == 4


# -- before the script runs ----------------------------------------------------------------------------------------------


def test_question_says_that_the_script_runs(
    streams: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    written = tmp_path / "written"
    command = ("--", sys.executable, "-c", f"open({str(written)!r}, 'w')")
    for answer, ran in (("no", False), (CLICKS, True)):
        monkeypatch.setattr("builtins.input", lambda answer=answer: answer)
        done = checkpoints("preflight", CLICKS, *command)
        assert "the code of the script RUNS on this host" in done.err
        assert "Writes through Spark are refused" in done.err
        assert "everything that it does without Spark happens" in done.err
        assert (done.code, written.exists()) == ((1, True) if ran else (2, False))


def test_without_a_terminal_the_script_runs_only_with_yes(
    streams: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    done = checkpoints("preflight", CLICKS, *script(*FITS))
    assert (done.code, done.out) == (2, "")
    assert "Not a terminal: the script's code runs. Confirm with --yes" in done.err
    done = checkpoints("preflight", CLICKS, "--yes", *script(*FITS))
    assert done.code == 0
    assert done.err.startswith(f"PREFLIGHT of {CLICKS}: compares ")
    assert "the code of the script RUNS on this host" in done.err


@pytest.mark.parametrize(
    "options",
    [
        ["--deploy-mode", "cluster"],
        ["--deploy-mode=cluster"],
        ["--conf", "spark.submit.deployMode=cluster"],
        ["-c", "spark.submit.deployMode=cluster"],
        ["--properties-file", "{folder}/own.conf"],
        [],
    ],
)
@pytest.mark.parametrize(
    "arguments", [[], ["--deploy-mode", "client"], ["--conf", "spark.submit.deployMode=client"]], ids=" ".join
)
def test_driver_in_a_cluster_would_run_the_job_and_is_not_started(
    streams: Job,
    checkpoints: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    arguments: list[str],
) -> None:
    """The last one has its deploy mode in spark-defaults.conf. What follows the script are arguments of the script."""
    for name in ("own.conf", "spark-defaults.conf"):
        (tmp_path / name).write_text("spark.submit.deployMode  cluster\n")
    if not options:
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    submit = ["--", "spark-submit", *(option.format(folder=tmp_path) for option in options), "app.py", *arguments]
    done = checkpoints("preflight", CLICKS, "--yes", *submit)
    assert (done.code, done.out) == (2, "")
    assert "it does not learn that this is a preflight" in done.err


def test_wrapper_around_spark_submit_with_a_cluster_is_refused(streams: Job, checkpoints: Command) -> None:
    done = checkpoints("preflight", CLICKS, "--yes", "--", "sh", "-c", "exec submit --deploy-mode 'cluster' app.py")
    assert (done.code, done.out) == (2, "")
    assert "Write --deploy-mode client before the script" in done.err


@pytest.mark.parametrize("options", [[], ["--name", "x"], ["--deploy-mode", "client"]])
def test_command_says_that_its_driver_runs_here(
    streams: Job, checkpoints: Command, tmp_path: Path, options: list[str]
) -> None:
    """A default that only the command knows could lead to a cluster."""
    program, words = tmp_path / "spark-submit", tmp_path / "words"
    program.write_text(f'#!/bin/sh\necho "$@" > {words}\n')
    program.chmod(0o755)
    checkpoints("preflight", CLICKS, "--yes", "--", str(program), *options, "app.py", "--day", "1")
    said = words.read_text().split()
    assert said[: said.index("app.py")].count("--deploy-mode") == 1
    assert said[said.index("--deploy-mode") + 1] == "client"
    assert said[-3:] == ["app.py", "--day", "1"]
