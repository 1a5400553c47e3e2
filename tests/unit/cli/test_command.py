"""The command itself: exit codes, errors of one line, terminals and pipes."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli import main as command
from airflow_checkpoint_provider.cli.verbs import VERBS, Verb, name
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    CheckpointNotFound,
    CheckpointWasAborted,
    CommitStateUnknown,
    Damaged,
    EndedAfterStop,
    InvalidName,
    NotStopped,
    NotSupportedYet,
    Refused,
    StillPending,
    StoreDenied,
    StoreMisconfigured,
    StoreUnavailable,
)
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore
from tests.support.recorded import Recorded
from tests.unit.cli.conftest import ABORTED, FLIGHTS, ORDERS, Command


class Failing(MemoryStore):
    """A store that answers with one error."""

    def __init__(self, error: CheckpointError) -> None:
        super().__init__()
        self._error = error

    def folders(self, prefix: str) -> Iterator[str]:
        raise self._error


EXITS: dict[int, list[type[CheckpointError]]] = {
    1: [Damaged, StoreUnavailable, CheckpointWasAborted, NotStopped, EndedAfterStop],
    2: [InvalidName, NotSupportedYet, StoreMisconfigured],
    3: [Refused],
    4: [CheckpointNotFound],
    5: [StoreDenied],
    6: [CommitStateUnknown, StillPending],
}


@pytest.mark.parametrize(("error", "code"), [(error, code) for code, errors in EXITS.items() for error in errors])
def test_error_gives_its_exit_code_and_one_line(
    error: type[CheckpointError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = command.parser().parse_args(["jobs"])
    assert command.run(options.verb, options, lambda: Failing(error("it is so;\nmend it"))) == code
    assert capsys.readouterr() == ("", f"it is so; mend it [{error.code}]\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["restore", "x"],
        ["savepoint"],
        ["dispose"],
        ["jobs", "--output", "yaml"],
        ["list"],
        ["jobs", "--limit", "0"],
        ["jobs", "--limit", "٣"],
        ["jobs", "--limit", "9" * 5000],
    ],
)
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2


NOT_UTF8 = "\udcff\udcfe"  # as Python reads the bytes FF FE in arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ["--root", NOT_UTF8, "jobs"],
        ["list", NOT_UTF8],
        ["list", FLIGHTS, NOT_UTF8],
        ["show", FLIGHTS, "run", NOT_UTF8],
        ["verify", f"/lake/{NOT_UTF8}/chk-7"],
        ["savepoint", FLIGHTS, "--to", NOT_UTF8],
        ["savepoint", FLIGHTS, "--name", NOT_UTF8],
        ["trigger", FLIGHTS, "--request-id", NOT_UTF8],
        ["trigger", FLIGHTS, "--timeout", NOT_UTF8],
        ["restore", FLIGHTS, "--from", NOT_UTF8],
        ["restore", FLIGHTS, "--from", "latest", "--rename", f"old={NOT_UTF8}"],
    ],
)
def test_argument_that_is_not_utf8_exits_with_2(
    arguments: list[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments if "--root" in arguments else ["--root", str(root), *arguments]) == 2
    done = capsys.readouterr()
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert "is not UTF-8. Write it in UTF-8 [CKP601]" in done.err
    assert done.err.isascii()


@pytest.mark.parametrize("arguments", [["list", "no/job"], ["verify", "no pointer"]])
def test_invalid_values_exit_with_2(checkpoints: Command, arguments: list[str]) -> None:
    done = checkpoints(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_unsupported_store_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--root", "hdfs://namenode/ckp", "jobs"]) == 2
    assert capsys.readouterr().err.endswith("[CKP612]\n")


def test_root_may_stand_before_or_behind_the_verb(
    lake: LocalStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--root", str(root), "jobs"]) == 0
    before = capsys.readouterr()
    assert command.main(["jobs", "--root", str(root)]) == 0
    assert capsys.readouterr() == before


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main(["--version"])
    assert capsys.readouterr().out == f"{__version__}\n"


def test_root_is_the_directory_checkpoints_by_default(
    lake: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root.parent)
    assert command.main(["jobs"]) == 2
    assert "There is no directory ./checkpoints. Write --root URI" in capsys.readouterr().err
    root.rename(root.parent / "checkpoints")
    assert command.main(["jobs"]) == 0
    assert FLIGHTS in capsys.readouterr().out


@pytest.mark.parametrize("output", ["table", "plain", "json"])
def test_letter_that_the_terminal_lacks_is_escaped(lake: LocalStore, root: Path, output: str) -> None:
    arguments = ["--root", str(root), "list", FLIGHTS, "--output", output]
    done = subprocess.run(
        [sys.executable, "-m", command.__name__, *arguments],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.isascii(), done.stdout
    assert done.stderr == b""
    assert (rb"\u2013" in done.stdout) == (output != "json")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(columns: int, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let stdout be a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    return terminal


def test_terminal_gets_colours_and_folded_columns_but_whole_names(
    lake: LocalStore, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People type the names again."""
    terminal = terminal_of(80, monkeypatch)
    checkpoints("jobs")
    checkpoints("list", FLIGHTS)
    output = terminal.getvalue()
    assert "\x1b[" in output
    assert {FLIGHTS, ORDERS, "scheduled__2026-11-20", "chk-4", "START", "NOTE", "replaced"} <= set(
        re.split(r"\s|\x1b\[[0-9;]*m", output)
    )
    assert "\N{HORIZONTAL ELLIPSIS}" not in output
    assert "attempt replaced" not in output, "the last column is folded"


def test_driver_without_a_heartbeat_is_red(
    running: Recorded, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = terminal_of(200, monkeypatch)
    monkeypatch.setattr(locate, "not_beating", lambda *_: {running.keys.prefix})
    checkpoints("jobs")
    assert "\x1b[31mrunning, no heartbeat\x1b[0m" in terminal.getvalue()


def test_pseudo_terminal_gets_colours(lake: LocalStore, root: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    arguments = [sys.executable, "-m", "airflow_checkpoint_provider.cli.main", "--root", str(root), "list", FLIGHTS]
    subprocess.run(arguments, stdout=theirs, env=environment, timeout=60, check=True)
    os.close(theirs)
    output = os.read(ours, 65536).decode()
    os.close(ours)
    assert "\x1b[32mcompleted\x1b[0m" in output
    assert "\x1b[31maborted" in output


def test_pipe_gets_whole_lines_without_colours(lake: LocalStore, root: Path) -> None:
    arguments = [sys.executable, "-m", "airflow_checkpoint_provider.cli.main", "--root", str(root), "list", FLIGHTS]
    environment = {**os.environ, "COLUMNS": "20", "FORCE_COLOR": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert ABORTED in done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_closed_pipe_exits_with_1_and_says_nothing(lake: LocalStore, root: Path) -> None:
    arguments = [sys.executable, "-m", "airflow_checkpoint_provider.cli.main", "--root", str(root), "list", FLIGHTS]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(("to", "why"), [("> /dev/full", "No space left on device"), (">&-", "stdout is closed")])
def test_report_that_cannot_be_written_does_not_hide_that_the_change_was_made(
    running: Recorded, to: str, why: str
) -> None:
    arguments = ["--root", running.store.uri, "restore", FLIGHTS, "--from", "chk-2", "--yes"]
    line = shlex.join([sys.executable, "-m", "airflow_checkpoint_provider.cli.main", *arguments])
    done = subprocess.run(f"{line} {to}", shell=True, capture_output=True, text=True, timeout=60, check=False)
    said = f"the report could not be written ({why}). `restore` itself has run to its end\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert running.coordinator.journal.catch_up().branch.number == 1


def test_closed_pipe_keeps_the_notes(lake: LocalStore, root: Path) -> None:
    arguments = [
        sys.executable,
        "-m",
        "airflow_checkpoint_provider.cli.main",
        "--root",
        str(root),
        "jobs",
        "--limit",
        "1",
    ]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "1 older job left out; see --limit\n")


# -- help ----------------------------------------------------------------------------------------------------------------


def test_help_lists_every_verb_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "List, trigger, restore and delete checkpoints of Spark jobs." in shown
    for verb in VERBS:
        assert f" {name(verb)} {' '.join(str(verb.__doc__).split())}" in shown


@pytest.mark.parametrize("verb", VERBS, ids=name)
def test_help_of_a_verb_explains_every_argument(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([name(verb), "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for flags, options in VERBS[verb]:
        assert options["help"] in shown, flags


@pytest.mark.parametrize(
    ("arguments", "code", "meant"),
    [
        (["shwo", ORDERS], 2, "show"),
        (["list", ORDERS, "-o", "jsn"], 2, "json"),
        (["show", ORDERS, "--statisticks"], 2, "--statistics"),
        (["restore", ORDERS, "--from", "latest", "--dryrun"], 2, "--dry-run"),
        (["show", "etl.order"], 4, ORDERS),
        (["story", "etl.ordres", "run"], 4, ORDERS),
        (["verify", "flights_etl.delay", "chk-3"], 4, FLIGHTS),
        (["release", "etl.order", "clicks", "--to", "/new"], 4, ORDERS),
        (["list", ORDERS, "scheduled__2026-11-91"], 4, "scheduled__2026-11-19"),
    ],
)
def test_typo_gets_the_nearest_word(
    lake: LocalStore, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, meant: str
) -> None:
    try:
        ended = command.main(["--root", str(lake.uri), *arguments])
    except SystemExit as left:
        ended = int(left.code or 0)
    assert ended == code
    assert f"Did you mean {meant!r}?" in capsys.readouterr().err


def test_word_that_is_like_no_other_gets_none(lake: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--root", str(lake.uri), "show", "zzz"]) == 4
    assert "Did you mean" not in capsys.readouterr().err
