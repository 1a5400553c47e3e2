"""``dispose``: a savepoint goes, unless its job may still start from it."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli import airflow_cli, change, main
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.protocol.checkpoint_records import FORGOTTEN, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import RUN, Job
from tests.unit.cli.conftest import Command
from tests.unit.cli.driver import savepoint


@pytest.fixture
def saved(job: Job) -> Checkpoint:
    """An old one: the job has completed others since."""
    made = savepoint(job)
    for number in (3, 4):
        job.complete(job.coordinator.trigger(Request(token=f"barrier {number}", barrier="stage 'clean'")))
    return made


def files(saved: Checkpoint) -> list[str]:
    pointer = target_of(saved)
    return sorted(
        listed.key.removeprefix(f"{pointer.name}/") for listed in LocalStore(pointer.root[7:]).list(pointer.name)
    )


def test_dispose_with_dry_run_prints_what_it_would_delete(job: Job, saved: Checkpoint, checkpoints: Command) -> None:
    before = (job.state.n, files(saved))
    done = checkpoints("dispose", str(saved.target), "--dry-run")
    assert (done.code, done.lines) == (
        0,
        [f"DISPOSE {saved.target}: a savepoint of orders, 2 files, 38 B", "nothing was changed (--dry-run)"],
    )
    assert (job.state.n, files(saved)) == before


def test_dispose_takes_a_job_and_an_id_as_show_does(job: Job, saved: Checkpoint, checkpoints: Command) -> None:
    done = checkpoints("dispose", "orders", f"chk-{saved.id}", "--yes")
    assert (done.code, done.lines[-1]) == (0, "done")
    assert job.checkpoint(saved.id).status == FORGOTTEN
    again = checkpoints("dispose", "orders", f"chk-{saved.id}", "--yes")
    assert (again.code, again.err) == (0, "")
    assert again.lines[0].startswith(f"{saved.target} was disposed of at 20")
    restored = checkpoints("restore", "orders", "--from", f"chk-{saved.id}", "--yes")
    assert restored.code == 4
    assert f"somebody has disposed of savepoint {saved.target}, or claimed it for another job" in restored.err
    assert "retention" not in restored.err
    assert checkpoints("dispose", "orders", "chk-4", "--yes").code == 2, "a checkpoint belongs to its job"


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/_metadata"])
def test_dispose_deletes_the_files_and_the_history_forgets_them(
    job: Job, saved: Checkpoint, checkpoints: Command, form: str
) -> None:
    done = checkpoints("dispose", form.format(saved.target), "--yes", "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"pointer": saved.target, "job": "orders", "files": 2, "bytes": 38, "history": True}
    assert (job.checkpoint(saved.id).status, files(saved)) == (FORGOTTEN, ["_claimed", "_metadata"])


def test_dispose_twice_succeeds_and_says_so(saved: Checkpoint, checkpoints: Command) -> None:
    checkpoints("dispose", str(saved.target), "--yes")
    for options in ([], ["--dry-run"], ["--yes"]):
        done = checkpoints("dispose", str(saved.target), *options)
        assert (done.code, done.err) == (0, "")
        (line,) = done.lines
        assert line.startswith(f"{saved.target} was disposed of at 20")


def test_dispose_finishes_a_killed_deletion_without_asking(saved: Checkpoint, checkpoints: Command) -> None:
    checkpoints("dispose", str(saved.target), "--yes")
    pointer = target_of(saved)
    LocalStore(pointer.root[7:]).create(f"{pointer.name}/state/clean/1-x/part-0", b"left")
    checkpoints("dispose", str(saved.target))
    assert files(saved) == ["_claimed", "_metadata"]


# -- a savepoint that was moved or removed ---------------------------------------------------------------------------------


def removed(saved: Checkpoint) -> str:
    """Remove the directory of a savepoint by hand, and return its pointer."""
    pointer = target_of(saved)
    shutil.rmtree(f"{pointer.root[7:]}/{pointer.name}")
    return str(saved.target)


def test_verify_says_that_a_savepoint_is_gone(saved: Checkpoint, checkpoints: Command) -> None:
    pointer = removed(saved)
    done = checkpoints("verify", pointer)
    assert (done.code, done.out) == (4, "")
    assert f"savepoint chk-{saved.id} of orders is gone: its directory was moved or removed" in done.err
    assert f"dispose --forget {pointer} [CKP624]" in done.err


def test_restore_and_dispose_say_that_a_savepoint_is_gone(job: Job, saved: Checkpoint, checkpoints: Command) -> None:
    pointer = removed(saved)
    said = f"savepoint chk-{saved.id} of orders is gone: its directory was moved or removed"
    for arguments in (("dispose", pointer), ("dispose", "orders", "chk-2"), ("restore", "orders", "--from", pointer)):
        done = checkpoints(*arguments, "--yes")
        assert (done.code, done.out) == (4, "")
        assert said in done.err
    done = checkpoints("restore", "orders", "--from", f"chk-{saved.id}", "--yes")
    assert done.code == 1
    assert f"chk-2 cannot be restored: its directory {pointer} was moved or removed" in done.err
    assert f"dispose --forget {pointer}. chk-1 is the next older one that is whole" in done.err
    assert job.state.branch.number == 0


def test_dispose_with_forget_drops_the_record_of_a_savepoint_that_is_gone(
    job: Job, saved: Checkpoint, checkpoints: Command
) -> None:
    pointer = removed(saved)
    before = job.state.n
    dry = checkpoints("dispose", "--forget", pointer, "--dry-run")
    assert (dry.code, dry.lines[-1], job.state.n) == (0, "nothing was changed (--dry-run)", before)
    done = checkpoints("dispose", "--forget", pointer, "--yes")
    assert done.code == 0, done.err
    line = f"FORGET {pointer}: savepoint chk-{saved.id} of orders, which is not there any more"
    assert done.lines == [line, "done"]
    assert job.checkpoint(saved.id).status == FORGOTTEN
    assert not Path(pointer[7:]).exists()
    again = checkpoints("dispose", "--forget", pointer, "--yes")
    assert again.code == 4
    assert "lists a savepoint there, so there is nothing to forget" in again.err


def test_dispose_with_forget_is_refused_for_a_savepoint_that_is_there(
    job: Job, saved: Checkpoint, checkpoints: Command
) -> None:
    done = checkpoints("dispose", "--forget", str(saved.target), "--yes")
    assert (done.code, job.checkpoint(saved.id).status) == (3, RETAINED)
    assert "is still there. Leave out --forget to delete it" in done.err


def test_dispose_with_forget_is_refused_while_the_job_may_start_from_the_savepoint(
    job: Job, checkpoints: Command
) -> None:
    made = savepoint(job)
    done = checkpoints("dispose", "--forget", removed(made), "--yes")
    assert (done.code, job.checkpoint(made.id).status) == (3, RETAINED)
    assert "orders may still start from savepoint chk-2; nothing was changed" in done.err


# -- refused -------------------------------------------------------------------------------------------------------------


def test_dispose_is_refused_while_the_job_may_start_from_it(job: Job, checkpoints: Command) -> None:
    made = savepoint(job)
    for options in (["--yes"], ["--dry-run"]):
        done = checkpoints("dispose", str(made.target), *options)
        assert (done.code, done.out) == (3, "")
        assert "orders may still start from savepoint chk-2; nothing was changed" in done.err
    assert job.checkpoint(2).status == RETAINED


def test_dispose_is_refused_for_a_claimed_savepoint(saved: Checkpoint, store: LocalStore, checkpoints: Command) -> None:
    other = Job(store, "payments")
    other.start()
    assert checkpoints("restore", "payments", "--from", str(saved.target), "--claim", "--yes").code == 0
    for options in (["--dry-run"], [], ["--yes"]):
        done = checkpoints("dispose", str(saved.target), *options)
        assert (done.code, done.out) == (3, "")
        assert "was claimed for another history at" in done.err
        assert (
            "That deletes it when its retention keeps it no more; if its restore was given up, dispose of it a day later. If "
            in done.err
        )


def test_refused_dispose_names_the_run_to_restore(store: LocalStore, checkpoints: Command) -> None:
    job = Job(store, scope=RUN)
    job.start()
    done = checkpoints("dispose", str(savepoint(job).target), "--yes")
    command = f"checkpoints --root {store.root} restore orders {RUN} --from …"
    assert f"choose another restore point: {command}" in done.err


@pytest.mark.parametrize(
    ("pointer", "code", "says"),
    [
        ("{root}/jobs/orders/job/chk-1", 2, "prune JOB` and retention="),
        ("{root}/savepoints/savepoint-orders-9-9f3c", 4, "there is no savepoint"),
        ("orders", 2, "orders is a job. Write which checkpoint of it"),
    ],
)
def test_dispose_of_anything_but_a_savepoint_fails(
    job: Job, saved: Checkpoint, checkpoints: Command, pointer: str, code: int, says: str
) -> None:
    done = checkpoints("dispose", pointer.format(root=job.store.uri), "--yes")
    assert (done.code, done.out) == (code, "")
    assert says in done.err


def test_dispose_asks_and_changes_nothing_without_a_terminal(
    saved: Checkpoint, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    before = files(saved)
    done = checkpoints("dispose", str(saved.target))
    assert (done.code, done.out, files(saved)) == (2, "", before)


def test_dispose_deletes_after_the_jobs_name_was_typed(
    job: Job, saved: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    change.dispose(job.store, str(saved.target), change.Approval(ask=lambda question: "orders"), history_is_here=True)
    assert job.checkpoint(saved.id).status == FORGOTTEN


# -- whose history it is -------------------------------------------------------------------------------------------------


def test_dispose_finds_the_history_by_a_pointer_below_the_root(
    job: Job, saved: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["dispose", str(saved.target), "--yes"]) == 0, capsys.readouterr().err
    assert job.checkpoint(saved.id).status == FORGOTTEN


@pytest.mark.parametrize(
    ("pointer", "root"),
    [
        ("s3://lake/ckp/savepoints/savepoint-orders-7-9f3c", "s3://lake/ckp"),
        ("s3://lake/savepoints/savepoint-orders-7-9f3c", "s3://lake"),
        ("s3://savepoints/savepoint-orders-7-9f3c", "s3://savepoints"),
        ("file:///savepoints/moved", "file:///savepoints"),
        ("/savepoints/moved", "/savepoints"),
        ("s3://lake/moved/one", "s3://lake/moved"),
    ],
)
def test_root_of_a_pointer(pointer: str, root: str) -> None:
    assert main.root_of(pointer) == root


@pytest.fixture
def sent(job: Job, tmp_path: Path) -> Checkpoint:
    made = savepoint(job, folder=f"file://{tmp_path}/shared")
    job.complete(job.coordinator.trigger(Request(token="barrier", barrier="stage 'clean'")))
    return made


def test_dispose_elsewhere_is_refused_without_root(
    job: Job, sent: Checkpoint, checkpoints: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["--yes"], ["--dry-run"]):
        assert main.main(["dispose", str(sent.target), *options]) == 3
        captured = capsys.readouterr()
        assert captured.out == ""
        assert (
            "it is unknown whether the job still needs this savepoint. Name the root of its checkpoints" in captured.err
        )
        assert "If the history was deleted, name the root where it was: then the files are deleted" in captured.err
    assert checkpoints("dispose", str(sent.target), "--yes").code == 0
    assert (job.checkpoint(sent.id).status, files(sent)) == (FORGOTTEN, ["_claimed", "_metadata"])


def test_dispose_deletes_the_files_if_the_named_root_has_no_history(
    job: Job, sent: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person who names a root takes it upon himself."""
    root = f"{tmp_path}/another"
    assert main.main(["--root", root, "dispose", str(sent.target), "--yes"]) == 0
    assert f"its own history is not under file://{root}: it was not checked" in capsys.readouterr().out
    assert (job.checkpoint(sent.id).status, files(sent)) == (RETAINED, ["_claimed", "_metadata"])


def test_connection_that_nobody_has_named_is_no_named_root(
    sent: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`airflow checkpoints dispose URI` opens the default connection, whose root may be that of other jobs."""
    (tmp_path / "another").mkdir()
    named = json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": f"{tmp_path}/another"}})
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", named)
    (group,) = airflow_cli.get_cli_commands()
    (verb,) = (command for command in group.subcommands if command.name == "dispose")
    parser = argparse.ArgumentParser()
    for argument in verb.args:
        argument.add_to_parser(parser)
    with pytest.raises(SystemExit) as raised:
        verb.func(parser.parse_args([str(sent.target), "--yes"]))
    assert raised.value.code == 3
    assert "it is unknown whether the job still needs this savepoint" in capsys.readouterr().err
    assert files(sent) != ["_claimed", "_metadata"], "nothing was deleted"
    verb.func(parser.parse_args([str(sent.target), "--yes", "--conn-id", "checkpoint_default"]))
    assert "it was not checked" in capsys.readouterr().out
    assert files(sent) == ["_claimed", "_metadata"]
