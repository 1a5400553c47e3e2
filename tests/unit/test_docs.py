"""What the documentation says is in the code, and still is so: links, files, examples, fields, events. Runs anywhere."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pytest

import airflow_checkpoint_provider
from airflow_checkpoint_provider.coordinator import liveness, savepoint_target
from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.file_sink import rewinding
from airflow_checkpoint_provider.protocol import (
    checkpoint_records,
    events,
    launch_records,
    metadata,
    query_records,
    state,
)
from airflow_checkpoint_provider.protocol.kinds import KINDS, Kind
from airflow_checkpoint_provider.protocol.records import Record, canonical, checked, parse

PACKAGE = Path(airflow_checkpoint_provider.__file__).parent
ROOT = PACKAGE.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FORMATS = (ROOT / "docs" / "formats.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
FILE = re.compile(
    r"`((?:protocol|policies|coordinator|text|checkpoint|storage|spark|operators|sensors|triggers|task_groups|hooks|cli|benchmarks|tests)/[\w/.]+|\w+\.py)`"
)
NAME = re.compile(r"`([^`]+)`")

Table = list[list[str]]


def tables(page: str) -> Iterator[tuple[str, Table]]:
    """Yield each table with the paragraph before it."""
    for found in re.finditer(r"((?:^[^|\n].*\n)*)\n*((?:^\|.*\n?)+)", page, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in found[2].splitlines()]
        yield found[1], [[cell.strip() for cell in row] for row in rows if set("".join(row)) - set("-: ")]


def rows_with(page: str, first: str) -> Table:
    """The rows whose first cell looks like ``first``."""
    return [row for _, table in tables(page) for row in table if re.fullmatch(first, row[0])]


def names(table: Table) -> set[str]:
    """Return the words in backticks in the first column."""
    return {name for row in table for name in NAME.findall(row[0])}


# -- links and files -----------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(BLOCK.sub("", page.read_text())):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    for name in FILE.findall(page.read_text()):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


# -- the reading order ---------------------------------------------------------------------------------------------------

FOLDERS = [
    "protocol",
    "policies",
    "storage",
    "location",
    "file_sink",
    "coordinator",
    "text",
    "checkpoint",
    "spark",
    "spark/attempt",
    "spark/checkpoints",
    "spark/stages",
    "spark/queries",
    "spark/queries/location",
    "spark/queries/sinks",
    "spark/queries/sources",
    "spark/queries/flows",
    "spark/state",
    "spark/process",
    "hooks",
    "operators",
    "sensors",
    "triggers",
    "assets",
    "task_groups",
    "cli",
    "ui",
    "ui/views",
    ".",
]


def has_code(module: Path) -> bool:
    """Return whether there is more than a docstring in it."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(module.read_text(encoding="utf-8")).body)


def reading_order() -> list[str]:
    """Return the modules that CONTRIBUTING.md names, in its order."""
    section = CONTRIBUTING.split("## In which order to read")[1].split("\n## ")[0]
    (table,) = [table for _, table in tables(section)]
    return [name for row in table for name in NAME.findall(row[0])]


def test_reading_order_names_each_module_once() -> None:
    modules = [str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if has_code(file)]
    assert sorted(reading_order()) == sorted(modules)


def test_reading_order_follows_the_folders() -> None:
    folders = [str(Path(module).parent) for module in reading_order()]
    assert [folder for folder, _ in groupby(folders)] == FOLDERS


# -- examples and fields -------------------------------------------------------------------------------------------------

SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", FORMATS, re.MULTILINE | re.DOTALL))
EXAMPLES = {
    title: json.loads(found[2])
    for title, text in SECTIONS.items()
    for found in BLOCK.finditer(text)
    if found[1] == "json"
}
READERS: dict[str, type[Record]] = {
    "Acknowledgement": metadata.Acknowledgement,
    "Seal": metadata.Seal,
    "Heartbeat": liveness.Beat,
    "Claim": savepoint_target.ClaimLock,
    "Stub of a savepoint": savepoint_target.DisposedStub,
    "Manifest of a sink": rewinding.Manifest,
}
EXPLAINED: dict[str, type] = {
    "A **token**": events.Token,
    "A **point**": events.Point,
    "A **launch spec**": events.LaunchSpec,
    "A **request**": events.Request,
    "A **state entry**": metadata.StateEntry,
    "The snapshot": state.State,
    "A **launch**": launch_records.Launch,
    "An **attempt**": launch_records.AttemptRecord,
    "A **run**": launch_records.Run,
    "An **end**": launch_records.EndRecord,
    "A **branch**": launch_records.Branch,
    "A **checkpoint**": checkpoint_records.Checkpoint,
    "A **completion**": checkpoint_records.Completion,
    "The **cause of an abort**": checkpoint_records.AbortCause,
    "A **query** in": query_records.QueryRecord,
    "A **location**": query_records.QueryLocation,
    "A **file set**": checkpoint_records.FileSetEntry,
    "A **state** in": metadata.StateSnapshot,
    "Its **measures**": metadata.Measures,
    "A **stage**": metadata.StageDetail,
    "The **metrics** of": metadata.Metrics,
    "A **query** stores": metadata.QueryDetail,
    "A file set is": metadata.FileSet,
    "A **file**": metadata.File,
    "Its **process**": liveness.Process,
    "A **running query**": liveness.QueryProgress,
    "**Earliest offsets**": liveness.EarliestOffsets,
}


def test_every_object_has_an_example() -> None:
    assert list(EXAMPLES) == ["Entry", "Boundary", "Stub", *READERS]


@pytest.mark.parametrize("title", EXAMPLES)
def test_example_is_read_and_written_back_by_the_package(title: str) -> None:
    body = canonical(EXAMPLES[title])
    read = READERS[title].from_json(parse(body, title)) if title in READERS else Entry.from_bytes(body, title)
    assert list(unknown(read)) == []
    assert (checked(read.to_json()) if isinstance(read, Record) else read.to_bytes()) == body


def test_digest_of_the_example_entry_is_that_of_the_example_seal() -> None:
    (completed,) = [event for event in EXAMPLES["Entry"]["events"] if event["kind"] == "checkpoint_completed"]
    seal = canonical(EXAMPLES["Seal"])
    assert (completed["digest"], completed["metadata_bytes"]) == (hashlib.sha256(seal).hexdigest(), len(seal))


def unknown(read: Any) -> Iterator[str]:
    """Yield the unknown fields that the reader kept, at any depth."""
    if isinstance(read, Entry | Record):
        yield from read.extra
        read = [getattr(read, field.name) for field in fields(read)]
    for one in read.values() if isinstance(read, dict) else read if isinstance(read, tuple | list) else ():
        yield from unknown(one)


@pytest.mark.parametrize("title", [title for title in EXAMPLES if title != "Boundary"])
def test_every_field_of_an_object_is_explained(title: str) -> None:
    behind = SECTIONS[title].split("\n```\n")[1]
    assert names(next(table for _, table in tables(behind))) == set(EXAMPLES[title])


@pytest.mark.parametrize("introduction", EXPLAINED)
def test_every_field_of_a_part_is_explained(introduction: str) -> None:
    (table,) = [table for before, table in tables(FORMATS) if before.startswith(introduction)]
    assert names(table) == own_fields(EXPLAINED[introduction])


def own_fields(kind: type) -> set[str]:
    assert is_dataclass(kind)
    return {field.name for field in fields(kind)} - {"extra"}


# -- events, properties --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", events.KINDS)
def test_every_event_is_explained(kind: str) -> None:
    assert rows_with(PROTOCOL, rf".*`{kind}`.*"), "docs/protocol.md does not say what it does"
    (table,) = [table for _, table in tables(FORMATS) if table[0][0] == "`kind`"]
    (row,) = [row for row in table if row[0] == f"`{kind}`"]
    assert own_fields(events.KINDS[kind]) <= set(NAME.findall(row[1])), "docs/formats.md lacks a field"


def test_properties_are_those_that_are_tested() -> None:
    written_out = (ROOT / "tests" / "model" / "properties.py").read_text()
    tested = re.findall(r"^(P\d+) ", written_out, re.MULTILINE)
    assert [row[0] for row in rows_with(PROTOCOL, r"P\d+")] == tested


ATTACK = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/\S+\.py)\)")


def test_each_attack_that_is_described_is_a_test() -> None:
    described = [table for _, table in tables(PROTOCOL) if table[0][0].startswith("somebody ")]
    assert [table[0][0] for table in described] == ["somebody stores", "somebody with a login"]
    for attack, _, link in chain.from_iterable(table[1:] for table in described):
        found = ATTACK.fullmatch(link)
        assert found, attack
        assert f"def {found[1]}(" in (ROOT / found[2]).read_text(), attack


# -- docs/flink.md ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_table_of_kinds_matches_the_code(kind: Kind) -> None:
    """Shares files, forced, deleted by a policy, subsumes, suspends."""
    (row,) = rows_with((ROOT / "docs" / "flink.md").read_text(), rf"`{kind.name}`.*")
    documented = [cell not in ("no", "never") for cell in row[1:]]
    assert documented == [not kind.savepoint, kind.savepoint, not kind.savepoint, kind.subsumes, kind.suspends]
