"""Codes: each has one meaning, which is written once, in the package. Runs anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import airflow_checkpoint_provider
from tests.support.codes import CODES, ERRORS, LINES

PACKAGE = Path(airflow_checkpoint_provider.__file__).parent


def test_code_has_one_meaning() -> None:
    assert len(ERRORS) + len(LINES) == len(CODES)
    assert len(set(CODES.values())) == len(CODES)


def test_codes_of_the_package_and_of_the_table_are_equal() -> None:
    sources = [file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")]
    used = {
        code for source in sources for code in re.findall(r"CKP\d{3}", re.sub(r'(?m)^ *"CKP\d{3}": .*$', "", source))
    }
    assert used == CODES.keys()


def test_meaning_is_a_sentence_in_one_line() -> None:
    assert [meaning for meaning in CODES.values() if not re.fullmatch(r"[A-Z].{10,115}\.", meaning)] == []
