"""Lines of the driver's log. Runs anywhere."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from airflow_checkpoint_provider.protocol.handover import LINE_MARK
from airflow_checkpoint_provider.spark.process.exits import leave
from airflow_checkpoint_provider.spark.process.log import say


def test_each_line_is_printed_as_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    say("stage 'a\nCKP999': reused\x1b[2J")
    say(["one\u2028two", "\u202eeerht"])
    assert capsys.readouterr().out == "stage 'a CKP999': reused\\x1b[2J\none two\n\\u202eeerht\n"


def test_each_line_begins_with_the_mark_of_the_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LINE_MARK, "::mark::")
    say(["one", "  two"])
    assert capsys.readouterr().out == "::mark::one\n::mark::  two\n"


def test_last_lines_of_a_driver_begin_with_the_mark_of_the_task() -> None:
    script = f"from {leave.__module__} import leave\nleave(79, 'FENCED\\n  to do')"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, LINE_MARK: "::mark::"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (79, "::mark::FENCED\n::mark::  to do\n")


def test_stream_of_a_script_needs_no_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    say("stage '変更'")
    assert stream.getvalue() == "stage '変更'\n"


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", r"\u5909\u66f4 \xe9"), ("latin-1", r"\u5909\u66f4 é")])
def test_letter_that_the_log_cannot_hold_ends_no_job(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(body, encoding=encoding))
    say("stage '変更 é'")
    assert body.getvalue().decode(encoding) == f"stage '{shown}'\n"


def everything(screen: int) -> bytes:
    """Read a terminal whose program has ended. One read may return only the first write."""
    shown = b""
    with os.fdopen(screen, "rb", buffering=0) as reader, suppress(OSError):  # EIO: no program holds it
        while more := reader.read(1000):
            shown += more
    return shown


def test_line_in_a_terminal_takes_the_place_of_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, terminal = os.openpty()
    with os.fdopen(terminal, "w") as shown:
        monkeypatch.setattr(sys, "stdout", shown)
        shown.write("[Stage 0:====>      (1 + 2) / 4]")
        say("chk-1 completed")
    assert everything(screen).endswith(b"]\r\x1b[Kchk-1 completed\r\n")
