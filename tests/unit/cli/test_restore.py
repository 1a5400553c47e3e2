"""``restore``: said before it is done, asked, done once."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.coordinator.closing import close
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import put_claim
from airflow_checkpoint_provider.errors import InvalidConfig, Refused
from airflow_checkpoint_provider.protocol.commands import CloseHistory, LocateQuery
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.keys import History, Keys, Pointer, SavepointPointer
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.recorded import Recorded
from tests.unit.cli.conftest import FLIGHTS, ORDERS, RUN, Command
from tests.unit.cli.driver import savepoint
from tests.unit.cli.kafka_jobs import AT, beat, save


def state(store: LocalStore, job: str, run: str | None = None) -> State:
    return Journal(store, Keys(History(job, run).prefix), By("test", "", "")).catch_up()


def test_restore_with_dry_run_prints_what_it_would_do(running: Recorded, checkpoints: Command) -> None:
    before = running.state.n
    done = checkpoints("restore", FLIGHTS, "--from", "chk-2", "--dry-run")
    assert done.code == 0
    assert done.lines == [
        "RESTORE flights_etl.delays, run scheduled__2026-11-20: the next attempt starts from chk-2".ljust(112)
        + "[CKP104]",
        "  verified    sealed 2026-11-21 00:52, 2 states, 47.1 KiB, all 4 files there, sizes match",
        "  fenced      attempt 1; its later writes are refused",
        (
            '  abandoned   chk-3. "latest" no longer means them. They can be restored by id until retention=KeepLatest(2)'
            " deletes them, the last one after 2 newer checkpoints. To keep them, set retention=KeepWithin(days=7) before the"
            " job starts"
        ),
        "nothing was changed (--dry-run)",
    ]
    assert running.coordinator.journal.catch_up().n == before


def test_restore_writes_one_entry(running: Recorded, checkpoints: Command) -> None:
    done = checkpoints("restore", FLIGHTS, "--from", "2", "--yes")
    assert done.code == 0
    entry, next_step = done.lines[-1].split(". ", 1)
    assert entry == f"done (entry {running.state.n + 1}): the next attempt of {FLIGHTS} starts from chk-2"
    task = f"task {FLIGHTS} of run scheduled__2026-11-20"
    assert (
        next_step
        == f"Nothing was submitted: the next retry of {task} starts there. If no retry is left, clear the task"
    )
    after = running.coordinator.journal.catch_up()
    assert (str(after.restore_point()), after.current_launch(), after.over(1)) == ("chk-2", None, True)
    assert after.branch.reason.startswith("restored by hand")


@pytest.mark.parametrize(
    ("where", "start"), [("latest", "chk-3"), ("run-start", None), ("none", None), ("chk-3", "chk-3")]
)
def test_restore_starts_from_the_named_source(
    running: Recorded, checkpoints: Command, where: str, start: str | None
) -> None:
    done = checkpoints("restore", FLIGHTS, RUN, "--from", where, "--yes", "-o", "json")
    assert json.loads(done.out)["next_start"] == start
    point = running.coordinator.journal.catch_up().restore_point()
    assert (str(point) if point else None) == start


def test_restore_from_another_history_by_its_pointer(lake: LocalStore, checkpoints: Command) -> None:
    newest = max(checkpoint.id for checkpoint in state(lake, ORDERS).retained)
    pointer = Pointer(lake.uri, Keys(History(ORDERS).prefix).prefix, newest)
    done = checkpoints("restore", FLIGHTS, "scheduled__2026-11-21", "--from", str(pointer), "--yes")
    assert done.code == 0, done.err
    assert str(state(lake, FLIGHTS, "scheduled__2026-11-21").restore_point()) == str(pointer)


def test_restore_ends_a_suspension(running: Recorded, checkpoints: Command) -> None:
    running.suspended("03:00:00")
    done = checkpoints("restore", FLIGHTS, "--from", "chk-3", "--yes")
    assert (
        "  lifted      the suspension since 2026-11-21 03:00 by upgrade.stop, with savepoint s3://lake/savepoints/savepoint-orders-41-9f3c"
        in done.lines
    )
    assert running.coordinator.journal.catch_up().suspended is None
    assert "still waits, it starts the driver within a minute" in done.lines[-1]


# -- savepoints ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> SavepointPointer:
    """A savepoint of ``orders`` in another lake, at a target of its own."""
    job = Job(LocalStore(tmp_path / "other lake"))
    job.start()
    return target_of(savepoint(job, folder=f"file://{tmp_path}/shared"))


def test_restore_from_a_savepoint_by_its_directory(
    running: Recorded, checkpoints: Command, elsewhere: SavepointPointer
) -> None:
    done = checkpoints("restore", FLIGHTS, "--from", f"{elsewhere}", "--rename", "clean=cleaned", "--yes")
    assert done.code == 0, done.err
    assert "  renamed     'clean' is now called 'cleaned'" in done.lines
    after = running.coordinator.journal.catch_up()
    assert (str(after.restore_point()), after.branch.rename, after.claims) == (str(elsewhere), {"clean": "cleaned"}, ())
    assert any("to name" in line and f"restore='{elsewhere}'" in line for line in done.lines)
    again = checkpoints("restore", FLIGHTS, "--from", "latest", "--yes")
    assert again.code == 3, "only the journal names that place now"
    assert "CKP409" in again.err
    named = checkpoints("restore", FLIGHTS, "--from", f"{elsewhere}", "--yes")
    assert "  renamed     'clean' is now called 'cleaned'" in named.lines, "the same place keeps its names"


def test_newest_savepoint_of_another_job_keeps_its_new_names(
    running: Recorded, checkpoints: Command, store: LocalStore
) -> None:
    job = Job(store)
    job.start()
    below = target_of(savepoint(job))
    assert checkpoints("restore", FLIGHTS, "--from", f"{below}", "--rename", "clean=cleaned", "--yes").code == 0
    again = checkpoints("restore", FLIGHTS, "--from", "latest", "--yes")
    assert "  renamed     'clean' is now called 'cleaned'" in again.lines
    assert not any("to name" in line for line in again.lines)
    assert running.coordinator.journal.catch_up().branch.rename == {"clean": "cleaned"}


def test_restore_with_claim_makes_the_job_the_owner(
    running: Recorded, checkpoints: Command, elsewhere: SavepointPointer
) -> None:
    dry = checkpoints("restore", FLIGHTS, "--from", f"{elsewhere}", "--claim", "--dry-run")
    assert (
        "  claimed     the savepoint belongs to this job, which deletes it when its retention no longer keeps it"
        in dry.lines
    )
    store = LocalStore(elsewhere.root.removeprefix("file://"))
    assert store.read(elsewhere.claim) is None
    assert checkpoints("restore", FLIGHTS, "--from", f"{elsewhere}", "--claim", "--yes").code == 0
    assert [claim.pointer for claim in running.coordinator.journal.catch_up().claims] == [str(elsewhere)]
    assert running.coordinator.folder.encode() in (store.read(elsewhere.claim) or b"")


def test_restore_from_its_own_savepoint_ends_the_suspension(job: Job, checkpoints: Command) -> None:
    made = savepoint(job, kind="suspend_savepoint")
    done = checkpoints("restore", "orders", "--from", str(made.target), "--yes", "-o", "json")
    assert (done.code, json.loads(done.out)["next_start"]) == (0, "chk-2"), done.err
    assert (str(job.state.restore_point()), job.state.suspended) == ("chk-2", None)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--claim", "--from", "chk-3"], 2, "chk-3 is not a savepoint of another history"),
        (["--claim", "--from", "none"], 2, "nothing is not a savepoint of another history"),
        (["--rename", "clean", "--from", "chk-3"], 2, "--rename clean: write OLD=NEW"),
        (["--rename", "=new", "--from", "chk-3"], 2, "--rename =new: write OLD=NEW"),
        (["--rename", "clean=a", "--rename", "clean=b", "--from", "chk-3"], 2, "each state of the checkpoint at most once"),
        (["--rename", "clean=weather", "--from", "chk-3"], 3, "[CKP421]"),
        (["--rename", "another=new", "--from", "chk-3"], 3, "[CKP422]"),
        (["--rename", "clean=new", "--from", "none"], 3, "[CKP422]"),
        (["--from", "hdfs://namenode/savepoint-orders-1-9f3c"], 2, "[CKP612]"),
        (["--from", "/nowhere/savepoint-orders-1-9f3c"], 4, "there is no savepoint"),
    ],
)  # fmt: skip
def test_restore_with_invalid_options_fails_and_changes_nothing(
    running: Recorded, checkpoints: Command, options: list[str], code: int, says: str
) -> None:
    done = checkpoints("restore", FLIGHTS, *options, "--yes")
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert running.coordinator.journal.catch_up().branch.number == 0


def test_restore_with_claim_is_refused_for_a_claimed_savepoint(
    running: Recorded, checkpoints: Command, elsewhere: SavepointPointer
) -> None:
    put_claim(LocalStore(elsewhere.root.removeprefix("file://")), elsewhere, "another", "bob", "2026-11-21T00:00:00Z")
    for options in (["--dry-run"], [], ["--yes"]):
        done = checkpoints("restore", FLIGHTS, "--from", f"{elsewhere}", "--claim", *options)
        assert (done.code, done.out) == (3, "")
        assert "was claimed for another history at 2026-11-21T00:00:00Z by bob" in done.err
    assert running.coordinator.journal.catch_up().branch.number == 0


def test_restore_of_a_closed_history_is_refused_before_it_asks_or_claims(
    checkpoints: Command, store: LocalStore, elsewhere: SavepointPointer
) -> None:
    """Its history lists a savepoint no more that another has claimed."""
    job = Job(store)
    job.start()
    job.end()
    close(Coordinator(job.coordinator.journal), CloseHistory(reason="the run finished", now="2027-01-01T00:00:00Z"))
    for options in (["--dry-run"], [], ["--yes"]):
        done = checkpoints("restore", "orders", "--from", f"{elsewhere}", "--claim", *options)
        assert (done.code, done.out) == (3, "")
        assert "this history was closed at" in done.err
    assert LocalStore(elsewhere.root.removeprefix("file://")).read(elsewhere.claim) is None


# -- refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "code", "says"),
    [
        ("chk-1", 4, "it was deleted"),
        ("chk-9", 4, "this history never made"),
        ("yesterday", 2, "'yesterday' is not a place to start from"),
    ],
)
def test_restore_from_an_absent_checkpoint_fails_and_changes_nothing(
    running: Recorded, checkpoints: Command, where: str, code: int, says: str
) -> None:
    done = checkpoints("restore", FLIGHTS, "--from", where, "--yes")
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert running.coordinator.journal.catch_up().branch.number == 0


def test_restore_from_a_damaged_checkpoint_fails_and_changes_nothing(running: Recorded, checkpoints: Command) -> None:
    running.store.delete([running.keys.seal(2)])
    done = checkpoints("restore", FLIGHTS, "--from", "chk-2", "--yes")
    assert (done.code, done.out) == (1, "")
    assert "chk-2 cannot be restored" in done.err
    command = f"checkpoints --root {running.store.uri[7:]} restore {FLIGHTS} {RUN} --from chk-3"
    assert f"chk-3 is the newest one that is whole. Nothing was changed. To start elsewhere: {command}" in done.err
    assert running.coordinator.journal.catch_up().branch.number == 0


def test_restore_without_a_terminal_changes_nothing(
    running: Recorded, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    done = checkpoints("restore", FLIGHTS, "--from", "chk-2")
    assert (done.code, done.out) == (2, "")
    assert "--dry-run" in done.err


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)


@pytest.mark.usefixtures("terminal")
def test_restore_is_done_after_the_jobs_name_was_typed(running: Recorded, store: LocalStore) -> None:
    change.restore(store, FLIGHTS, None, change.RestoreSource("chk-2"), change.Approval(ask=lambda question: FLIGHTS))
    assert running.coordinator.journal.catch_up().branch.number == 1


def test_question_goes_to_stderr(running: Recorded, checkpoints: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Typed(f"{FLIGHTS}\n"))
    done = checkpoints("restore", FLIGHTS, "--from", "chk-2", "-o", "json")
    assert json.loads(done.out)["next_start"] == "chk-2"
    assert done.err.startswith(f"RESTORE {FLIGHTS}, run {RUN}")
    assert done.err.endswith("Type the job's name to continue: ")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("answer", ["yes", ""])
def test_restore_with_another_answer_changes_nothing(running: Recorded, store: LocalStore, answer: str) -> None:
    with pytest.raises(InvalidConfig, match="nothing was changed"):
        change.restore(
            store, FLIGHTS, None, change.RestoreSource("chk-2"), change.Approval(ask=lambda question: answer)
        )
    assert running.coordinator.journal.catch_up().branch.number == 0


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("gone", [EOFError, KeyboardInterrupt])
def test_restore_without_an_answer_changes_nothing(
    running: Recorded, store: LocalStore, gone: type[BaseException]
) -> None:
    def answer(question: str) -> str:
        raise gone

    with pytest.raises(InvalidConfig, match="nothing was changed"):
        change.restore(store, FLIGHTS, None, change.RestoreSource("chk-2"), change.Approval(ask=answer))
    assert running.coordinator.journal.catch_up().branch.number == 0


@pytest.mark.usefixtures("terminal")
def test_restore_is_refused_if_latest_moved_during_the_question(running: Recorded, store: LocalStore) -> None:
    """While a person types, the job completes another one."""

    def answer(question: str) -> str:
        running.aborted(4, "03:40:00", "expired")
        running.stage("delays", "03:42:01", "03:42:02", work_s=2380, kib=1.9)
        return FLIGHTS

    with pytest.raises(Refused, match="latest now means chk-5, not chk-3"):
        change.restore(store, FLIGHTS, None, change.RestoreSource("latest"), change.Approval(ask=answer))
    assert running.coordinator.journal.catch_up().branch.number == 0


# -- rows of Kafka -------------------------------------------------------------------------------------------------------


GONE = "clicks-0 begins with offset 150, and the query reads on at 120: 30 offsets are gone"


def test_restore_behind_rows_that_kafka_has_deleted_is_refused(gone_on: Job, checkpoints: Command) -> None:
    beat(gone_on, '{"clicks":{"0":150,"1":0,"2":20},"more":{"0":9}}')
    before = gone_on.state.n
    for how in ("--dry-run", "--yes"):
        done = checkpoints("restore", "orders", "--from", "chk-2", how)
        assert done.code == 3
        assert f"`checkpoints --root {gone_on.store.uri[7:]} list orders` says which" in done.err
        why = f"query 'clicks': by its offsets at {AT}, Kafka does not have all rows since batch 2: {GONE}. Nothing was changed."
        assert why in done.err
        assert done.err.strip().endswith("[CKP405]")
    assert gone_on.state.n == before
    assert checkpoints("restore", "orders", "--from", "latest", "--yes").code == 0


@pytest.mark.parametrize("earliest", [None, '{"clicks":{"0":120,"1":7}}', '{"users":{"0":150}}', "-"])
def test_restore_goes_on_unless_the_heartbeat_proves_that_rows_are_gone(
    gone_on: Job, checkpoints: Command, earliest: str | None
) -> None:
    """Nobody has looked; the rows are there; or the newest script reads other topics."""
    if earliest:
        beat(gone_on, earliest)
    done = checkpoints("restore", "orders", "--from", "chk-2", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "not known" not in done.out


@pytest.mark.parametrize("where", ["none", "run-start"])
def test_query_that_runs_cannot_begin_anew(gone_on: Job, checkpoints: Command, where: str) -> None:
    """No driver could start it under its name. After a stop, its author may have given it another one."""
    before = gone_on.state.n
    for how in ("--dry-run", "--yes"):
        done = checkpoints("restore", "orders", "--from", where, how)
        assert (done.code, done.out, gone_on.state.n) == (2, "", before)
        assert "query 'clicks' runs, and cannot begin anew: it has written batches" in done.err
        assert f"`checkpoints --root {gone_on.store.uri[7:]} stop orders`, give the query another uid" in done.err
    savepoint(gone_on, kind="suspend_savepoint")
    gone_on.end("suspended")
    assert checkpoints("restore", "orders", "--from", where, "--yes").code == 0


def test_query_that_has_committed_no_batch_may_begin_anew(gone_on: Job, checkpoints: Command) -> None:
    (query,) = gone_on.state.queries
    gone_on.store.delete_under(gone_on.keys.file_set(query.newest.path))
    assert checkpoints("restore", "orders", "--from", "none", "--yes").code == 0


def test_query_that_goes_back_too_far_names_the_whole_command(gone_on: Job, checkpoints: Command) -> None:
    save(gone_on, "{}", sink="parquet", path="/data/out")
    done = checkpoints("restore", "orders", "--from", "chk-3", "--yes")
    assert done.code == 3
    command = f"checkpoints --root {gone_on.store.uri[7:]} restore orders --from"
    assert f"To move them out of it: `{command} chk-3 --rewind-sink`, or" in done.err
    assert f"To keep them: `{command} latest`. To have both" in done.err


def test_refusal_after_a_way_back_says_that_the_newest_checkpoint_may_not_fit(
    gone_on: Job, checkpoints: Command
) -> None:
    """Where a person has put the rows back that the query took out, the newest checkpoint is of another branch than the sink."""
    assert checkpoints("restore", "orders", "--from", "chk-2", "--yes").code == 0
    gone_on.start(try_number=2)
    way = LocateQuery(
        epoch=2, uid="clicks", path="query/clicks/2-def", taken_from="query/clicks/1-abc", begun=20, committed=20,
        gone_back=GoneBack(batch=2),
    )  # fmt: skip
    gone_on.coordinator.journal.append(way)
    gone_on.store.create(f"{gone_on.keys.file_set(way.path)}/commits/20", b"v1")
    save(gone_on, "{}", sink="parquet", path="/data/out")
    done = checkpoints("restore", "orders", "--from", "chk-3", "--yes")
    assert "--from latest`, unless you have put rows back (`rewound --put-back`): that does not fit them" in done.err


def test_restore_goes_on_if_the_source_reads_on_without_rows(gone_on: Job, checkpoints: Command) -> None:
    beat(gone_on, '{"clicks":{"0":150,"1":0}}', loss_allowed=("0",))
    assert checkpoints("restore", "orders", "--from", "chk-2", "--yes").code == 0
