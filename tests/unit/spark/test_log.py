"""Lines of the driver's log. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.spark.log import say


def test_each_line_is_printed_as_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    say("stage 'a\nCKP999': reused\x1b[2J")
    say(["one\u2028two", "\u202eeerht"])
    assert capsys.readouterr().out == "stage 'a CKP999': reused\\x1b[2J\none two\n\\u202eeerht\n"
