"""The file that an error names: damaged, whole, out of reach, or not needed by a retry. Without a Spark session."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.attempt.damage import damage_of
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import acknowledgement, stage
from tests.support.faults import Fault, FaultyStore, served
from tests.support.footers import with_footers
from tests.support.journals import KEYS
from tests.support.parquet import flipped, parquet_file
from tests.unit.spark.driver import Driver

ROWS = 100
BODY = parquet_file(ROWS)
PATH = file_set_path("clean", 1, "n0nce")
NAME = "part-00000-28578d76.zstd.parquet"
KEY = f"{KEYS.file_set(PATH)}/{NAME}"
SAID = f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://lake/{KEY}. SQLSTATE: KD001"


class Spark(Exception):
    """An error of PySpark: its causes in the JVM are a text of its own."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self._stackTrace = trace


@pytest.fixture
def store() -> FaultyStore:
    store = FaultyStore(MemoryStore())
    store.create(KEY, BODY)
    return store


@pytest.fixture
def clean(store: FaultyStore) -> StateSnapshot:
    files = with_footers(store, KEYS.file_set(PATH), [File(name=NAME, bytes=len(BODY), rows=ROWS)])
    return stage("clean", 1, made_of=FileSet(path=PATH, files=files))


@pytest.fixture
def running(store: FaultyStore, clean: StateSnapshot) -> Driver:
    """A driver whose first checkpoint holds the stage."""
    running = Driver(store)
    number = running.coordinator.trigger(Request(token="one", timeout_s=600.0))
    running.coordinator.acknowledge(acknowledgement(number, clean))
    running.coordinator.complete(number)
    return running


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "[CKP124]" in line]


def with_cause(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def in_context(error: Exception, context: Exception) -> Exception:
    error.__context__ = context
    return error


ERRORS = [
    pytest.param(Spark(SAID), id="text"),
    pytest.param(Spark("Job aborted", f"org.apache.spark.SparkException\nCaused by: {SAID}"), id="JVM"),
    pytest.param(with_cause(ValueError("no totals"), Spark(SAID)), id="cause"),
    pytest.param(in_context(ValueError("no totals"), in_context(KeyError("x"), Spark(SAID))), id="context"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_damaged_file_in_an_error_or_its_causes_is_named(
    running: Driver, store: FaultyStore, clean: StateSnapshot, error: Exception
) -> None:
    store.overwrite(KEY, flipped(BODY, 300))
    damage = damage_of(error, running.attempt, [clean])
    assert isinstance(damage, Damaged)
    assert damage.message.startswith(f"chk-1 cannot be restored: state 'clean': {KEY} has a page at byte ")
    assert "there is no other one that is whole" in damage.message


@pytest.mark.parametrize(
    "error",
    [None, Spark("[DIVIDE_BY_ZERO]"), Spark(SAID.replace("clean", "other")), SystemExit(1), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_cost_no_read(
    running: Driver, store: FaultyStore, clean: StateSnapshot, error: BaseException | None
) -> None:
    if error is not None:
        error.__context__ = Spark(SAID) if isinstance(error, SystemExit) else None
    store.requests.clear()
    assert damage_of(error, running.attempt, [clean]) is None
    assert not store.requests


def test_whole_file_is_said_to_be_whole(
    running: Driver, clean: StateSnapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    assert damage_of(Spark(SAID), running.attempt, [clean]) is None
    (line,) = lines(capsys)
    assert (
        f"state 'clean': the script failed at {KEY}. Read again, its size, footer and pages are as they were written"
        in line
    )


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.DENIED])
@pytest.mark.parametrize("kind", ["read", "list"])
def test_file_out_of_reach_is_not_taken_for_damaged(
    running: Driver,
    store: FaultyStore,
    clean: StateSnapshot,
    kind: str,
    fault: Fault,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store.overwrite(KEY, flipped(BODY, 300))
    store.plan = lambda call: fault if call.kind == kind else Fault.NONE
    assert damage_of(Spark(SAID), running.attempt, [clean]) is None
    (line,) = lines(capsys)
    assert "it cannot be read now either, so it may be whole" in line


def test_damage_is_not_named_while_the_journal_is_out_of_reach(
    running: Driver, store: FaultyStore, clean: StateSnapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    store.overwrite(KEY, flipped(BODY, 300))
    store.plan = lambda call: Fault.NOT_SENT if "/journal/" in call.key else Fault.NONE
    assert damage_of(Spark(SAID), running.attempt, [clean]) is None
    out = capsys.readouterr().out
    assert f"state 'clean': {KEY} has a page at byte " in out, "what was found is said, whatever else fails"
    assert "so it may be whole" not in out
    store.plan = served
    assert damage_of(Spark(SAID), running.attempt, [clean])


def test_damage_that_a_retry_does_not_read_is_said(
    store: FaultyStore, clean: StateSnapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    store.overwrite(KEY, flipped(BODY, 300))
    assert damage_of(Spark(SAID), Driver(store).attempt, [clean]) is None
    (line,) = lines(capsys)
    assert f"state 'clean': {KEY} has a page at byte " in line
    assert "does not hold it: a retry computes the stage again" in line
