"""The script's run in a preflight: what the script gets, and when the process ends with which code. Runs anywhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig, StoreUnavailable
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.metadata import QUERY, VALUE, LoopDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.preflight import PreflightRequest, QueryFit
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark import preflight as module
from airflow_checkpoint_provider.spark.preflight import ComparedQuery, PreflightRun, refuse_ended
from airflow_checkpoint_provider.storage import MemoryStore

DETAIL = QueryDetail(
    location="query/q/1-abc", batch=3, begun=3, sink="parquet", path="/out", sources={}, watermark_ms=0
)  # fmt: skip


class Over(Exception):
    """The process ended here, with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Preflighted(PreflightRun):
    """A preflight of a checkpoint with two queries and a value. Each query fits as ``answers`` says."""

    def __init__(self, folder: Path) -> None:
        self.answer = folder / "answer.json"
        self.copies = MemoryStore()
        self.copies.create("preflight/a/offsets/0", b"a copy")
        self.answers: dict[str, QueryFit] = {}
        self.given: dict[str, QueryDetail | None] = {}
        self._order = PreflightRequest("memory://x", "jobs/a", "latest", str(self.answer))
        self._folder, self._checkpoint, self._fits = Location(self.copies, "preflight/a"), "chk-3", {}
        self._saved = {
            **{uid: StateSnapshot(uid=uid, kind=QUERY, run="r", query=DETAIL) for uid in ("clean", "totals")},
            "day": StateSnapshot(uid="day", kind=VALUE, run="r", value=7),
        }
        played: Any = SimpleNamespace(compare=self._compare)
        self._preflight = played

    def _compare(self, uid: str, writer: object, saved: QueryDetail | None, **_: object) -> QueryFit:
        self.given[uid] = saved
        return self.answers.get(uid, QueryFit(uid))

    def start(self, uid: str) -> object:
        nobody: Any = None
        return self.start_query(uid, nobody, (), None, rescale=False)

    def written(self) -> dict[str, list[str]]:
        """Return the differences of each query in the answer."""
        return {fit["query"]: fit["differences"] for fit in json.loads(self.answer.read_text())["queries"]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preflighted:
    def leave(code: int, line: str) -> NoReturn:
        assert line == "PREFLIGHT: done. The script ends here"
        raise Over(code)

    monkeypatch.setattr(module, "leave", leave)
    return Preflighted(tmp_path)


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fit", "code", "said"),
    [
        (QueryFit("totals"), ExitCode.FINISHED, "query 'totals': ok"),
        (QueryFit("totals", note="reads again"), ExitCode.FINISHED, "query 'totals': reads again"),
        (QueryFit("totals", unknown="no answer"), ExitCode.FAILED, "query 'totals': no answer"),
        (
            QueryFit("totals", ("another key",), unknown="no answer"),
            ExitCode.REFUSED,
            "query 'totals': another key; no",
        ),
    ],
    ids=["fits", "fits with a note", "unknown", "differs"],
)
def test_process_ends_when_the_last_query_of_the_checkpoint_is_compared(
    run: Preflighted, fit: QueryFit, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run.answers["totals"] = fit
    assert isinstance(run.start("clean"), ComparedQuery)
    assert not run.answer.exists()
    with pytest.raises(Over) as over:
        run.start("totals")
    assert over.value.code == code
    assert run.given == {"clean": DETAIL, "totals": DETAIL}
    assert run.written() == {"clean": [], "totals": list(fit.differences)}
    assert run.copies.objects == {}
    assert said in capsys.readouterr().out


def test_query_that_the_script_does_not_start_does_not_fit(run: Preflighted) -> None:
    run.start("clean")
    with pytest.raises(Over) as over:
        run.finish()
    assert over.value.code == ExitCode.REFUSED
    assert run.written() == {"clean": [], "totals": ["the script does not start it"]}


def test_query_with_the_name_of_another_state_does_not_fit(run: Preflighted) -> None:
    run.start("day")
    assert run.given == {}, "Spark is not asked"
    with pytest.raises(Over):
        run.finish()
    assert run.written()["day"] == ["the checkpoint holds a value of that name"]


def test_query_that_the_checkpoint_does_not_hold_is_compared(run: Preflighted) -> None:
    run.start("new")
    assert run.given == {"new": None}


def test_script_that_ends_the_process_gets_an_answer(run: Preflighted) -> None:
    with pytest.raises(Over):
        run.fail(SystemExit(0))
    assert set(run.written()) == {"clean", "totals"}
    assert run.copies.objects == {}


def test_answer_and_error_are_not_lost_if_copies_cannot_be_deleted(
    run: Preflighted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_: str) -> NoReturn:
        raise StoreUnavailable("503 slow down")

    monkeypatch.setattr(run.copies, "delete_under", unavailable)
    run.fail(ValueError("no such column"))
    with pytest.raises(Over):
        run.finish()
    assert set(run.written()) == {"clean", "totals"}


def test_error_of_the_script_is_the_answer(run: Preflighted) -> None:
    run.fail(ValueError("no such column"))
    assert not run.answer.exists()
    assert run.copies.objects == {}


# -- in the script -------------------------------------------------------------------------------------------------------


def test_values_are_those_of_the_checkpoint_and_are_changed_for_the_script_alone(run: Preflighted) -> None:
    assert run.value("new", 1).get() == 1
    day = run.value("day", 0)
    assert day.get() == 7
    day.set(8)
    assert day.get() == 8
    assert run._saved["day"].value == 7


def test_stage_returns_the_rows_of_the_script(run: Preflighted) -> None:
    rows: Any = object()
    assert run.stage("clean", rows, None, "auto") is rows
    assert run.stage("clean", lambda: rows, None, "auto") is rows


def test_script_goes_on_as_in_an_attempt(run: Preflighted) -> None:
    before = datetime.now(UTC)
    assert run.checkpoint(wait=True) is True
    assert run.epoch == 0
    assert before <= run.started_at <= datetime.now(UTC)
    assert run.restored is None


def test_compared_query_has_ended() -> None:
    query = ComparedQuery()
    assert query.status == {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}
    assert (query.isActive, query.recentProgress, query.awaitTermination(1.0)) == (False, [], True)


# -- refusals ------------------------------------------------------------------------------------------------------------


def test_order_whose_command_has_ended_is_refused(run: Preflighted) -> None:
    refuse_ended(run._order)
    with pytest.raises(InvalidConfig, match="the preflight that has set it is over"):
        refuse_ended(PreflightRequest("memory://x", "jobs/a", "latest", str(run.answer / "gone" / "answer.json")))


def test_driver_of_a_task_is_refused() -> None:
    module._refuse_launched(None)
    task: Any = object()
    with pytest.raises(InvalidConfig, match="a driver that an Airflow task has launched"):
        module._refuse_launched(task)


def test_loops_of_a_preflight_leave_out_what_the_checkpoint_holds_as_done(run: Preflighted) -> None:
    detail = LoopDetail(application="app", path="state/days/1-a")
    run._saved["days"] = StateSnapshot(uid="days", kind="once", run="r", value=["mon", [1, 2]], loop=detail)
    assert list(run.once("days", ["mon", "tue", (1, 2)])) == ["tue"]
    assert list(run.once("new", ["mon"])) == ["mon"]
    assert list(run.iterate("count", range(3), None)) == [0, 1, 2]


def test_frame_of_a_preflight_has_its_first_rows_and_may_be_changed(run: Preflighted) -> None:
    first, second = Mock(name="first"), Mock(name="second")
    frame = run.frame("ranks", lambda: first)
    assert frame.df is first
    frame.set(second)
    assert frame.df is second
