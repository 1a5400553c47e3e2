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
from tests.unit.cli.test_replay import save

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
    done = checkpoints("preflight", CLICKS, *script(*FITS))
    assert done.code == 0
    assert [line.split(maxsplit=2) for line in done.lines[1:]] == [["orders", "ok"], ["new", "ok", "begins anew"]]


def test_query_that_does_not_fit_is_refused(streams: Job, checkpoints: Command) -> None:
    done = checkpoints("preflight", CLICKS, "-o", "json", *script(*FITS, DIFFERS))
    assert done.code == 3
    assert "query 'clicks' does not fit" in done.err
    found = json.loads(done.out)
    assert found["queries"][2]["differences"] == list(DIFFERS.differences)
    assert found["checkpoint"] == "latest"


def test_query_that_could_not_be_compared_is_unknown_and_is_not_refused(streams: Job, checkpoints: Command) -> None:
    unknown = QueryFit("clicks", unknown="Kafka does not say which rows it has [CKP406]")
    done = checkpoints("preflight", CLICKS, *script(*FITS, unknown))
    assert done.code == 1
    assert done.err.splitlines()[-1] == f"query 'clicks' could not be compared: {unknown.unknown} [CKP608]"
    assert done.lines[-1].split(maxsplit=2) == ["clicks", "unknown", unknown.unknown]
    other = QueryFit("views", DIFFERS.differences, unknown=unknown.unknown)
    assert checkpoints("preflight", CLICKS, *script(unknown, other)).code == 3


def test_script_that_does_not_answer_has_failed(streams: Job, checkpoints: Command) -> None:
    command = [sys.executable, "-c", "raise SystemExit(7)"]
    done = checkpoints("preflight", CLICKS, "--", *command)
    assert done.code == 1
    assert f"`{shlex.join(command)}` ended with exit code 7" in done.err
    assert "did not start (No such file or directory)" in checkpoints("preflight", CLICKS, "--", "/nowhere/submit").err


@pytest.mark.parametrize("source", ["latest", "chk-2"])
def test_checkpoint_without_a_query_has_nothing_to_compare_and_the_script_is_not_started(
    lake: LocalStore, checkpoints: Command, tmp_path: Path, source: str
) -> None:
    written = tmp_path / "written"
    done = checkpoints(
        "preflight", ORDERS, "--from", source, "--", sys.executable, "-c", f"open({str(written)!r}, 'w')"
    )
    assert (done.code, done.out, written.exists()) == (1, "", False)
    assert "holds no streaming query, so nothing can be compared. The script was not started." in done.err
    assert "[CKP608]" in done.err


def test_job_without_a_checkpoint_is_not_found(lake: LocalStore, checkpoints: Command) -> None:
    assert checkpoints("preflight", "etl.other", *script()).code == 4
    assert checkpoints("preflight", ORDERS, "--from", "chk-99", *script()).code == 4
