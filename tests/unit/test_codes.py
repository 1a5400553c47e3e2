"""One table of codes: no code twice, none missing, none left over."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import airflow_checkpoint_provider
from airflow_checkpoint_provider import codes
from airflow_checkpoint_provider.errors import all_errors
from airflow_checkpoint_provider.hooks import connections

PACKAGE = Path(airflow_checkpoint_provider.__file__).parent


def test_no_code_stands_twice_in_the_table() -> None:
    tree = ast.parse(Path(codes.__file__).read_text(encoding="utf-8"))
    (table,) = (node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    keys = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert keys == sorted(set(keys), key=str)
    assert set(keys) == set(codes.CODES)


def test_each_error_has_a_code_of_its_own() -> None:
    assert connections.ConnectionUnreadable in all_errors()
    counted = Counter(error.code for error in all_errors())
    assert [code for code, count in counted.items() if count > 1] == []
    assert counted.keys() <= codes.CODES.keys()


def test_the_table_holds_what_the_package_says_and_no_more() -> None:
    sources = (file for file in PACKAGE.rglob("*.py") if file != Path(codes.__file__))
    said = {code for file in sources for code in re.findall(r"CKP\d{3}", file.read_text(encoding="utf-8"))}
    assert said == codes.CODES.keys()


def test_meanings_are_one_line_each() -> None:
    assert all(meaning.endswith(".") and "\n" not in meaning for meaning in codes.CODES.values())
    assert len(set(codes.CODES.values())) == len(codes.CODES)
