"""What the documentation says is in the code, and still is so: links, files, examples, fields, events; and no page and no cell of a
table is long. Runs anywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import airflow_checkpoint_provider
from airflow_checkpoint_provider.coordinator import indexes, liveness, savepoint_target
from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.file_sink import rewinding
from airflow_checkpoint_provider.protocol import (
    checkpoint_records,
    events,
    file_records,
    launch_records,
    metadata,
    part_records,
    query_details,
    query_records,
    state,
    transactions,
)
from airflow_checkpoint_provider.protocol.decisions import HANDLERS
from airflow_checkpoint_provider.protocol.kinds import KINDS, Kind
from airflow_checkpoint_provider.protocol.records import Record, canonical, checked, parse
from airflow_checkpoint_provider.sinks import log as sink_log
from airflow_checkpoint_provider.sinks import staging

PACKAGE = Path(airflow_checkpoint_provider.__file__).parent
ROOT = PACKAGE.parent
INSIDE = ROOT / "docs" / "inside"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FORMATS = "\n".join(page.read_text() for page in sorted(INSIDE.glob("formats*.md")))
STATE_MACHINE = (INSIDE / "state-machine.md").read_text()
PROPERTIES = (INSIDE / "properties.md").read_text()
TRUST = (INSIDE / "trust.md").read_text()
FLINK = (INSIDE / "flink.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()

GENERATED = ("docs/reference/", "docs/inside/performance.md", "docs/inside/modules.md")
"""Pages that a program writes: an entry of the code, or of a benchmark, is as long as it is."""
NOT_READ_AT_ONCE = ("CHANGELOG.md", "CONTRIBUTING.md")
"""One grows with each release. In the other one a section is looked up."""
LONGEST_PAGE, LONGEST_CELL = 250, 200

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
FILE = re.compile(
    r"`((?:protocol|policies|coordinator|text|checkpoint|storage|location|file_sink|spark|operators|sensors|triggers|assets|task_groups|hooks|cli"
    r"|ui|benchmarks|tests)/[\w/.]+|\w+\.py)`"
)
TEST = re.compile(r"(?<![\w/])(tests/[\w/.]*\w)(?:::(\w+))?")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*\.(?:cfg|lock|md|py|svg|toml)|[\w.-]+(?:/[\w.-]+)+/?|[\w.-]+/")
MADE = ("dist/",)  # by `make`, so it need not be there
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


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=relative)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(BLOCK.sub("", page.read_text())):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@every_page
def test_named_files_exist(page: Path) -> None:
    for name in FILE.findall(page.read_text()):
        assert is_there(name), name


def is_there(name: str) -> bool:
    return (ROOT / name).exists() or (PACKAGE / name).exists()


@every_page
def test_named_tests_exist(page: Path) -> None:
    """In a table, in a command, or in a sentence."""
    for name, test in TEST.findall(page.read_text()):
        assert (ROOT / name).exists(), name
        assert not test or f"def {test}(" in (ROOT / name).read_text(), f"{name}::{test}"


def test_contributing_names_files_that_exist() -> None:
    named = {
        word for name in NAME.findall(BLOCK.sub("", CONTRIBUTING)) for word in name.split() if PATH.fullmatch(word)
    }
    assert [name for name in sorted(named.difference(MADE)) if not is_there(name)] == []


# -- pages that a person can read ----------------------------------------------------------------------------------------


@every_page
def test_no_page_is_long(page: Path) -> None:
    if not relative(page).startswith((*GENERATED, *NOT_READ_AT_ONCE)):
        assert len(page.read_text().splitlines()) <= LONGEST_PAGE, "split it by the questions that it answers"


@every_page
def test_no_cell_of_a_table_is_long(page: Path) -> None:
    if not relative(page).startswith(GENERATED):
        cells = [cell for _, table in tables(page.read_text()) for row in table for cell in row]
        assert [cell for cell in cells if len(cell) > LONGEST_CELL] == [], "write a short section instead"


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
    "Registration": indexes.Registration,
}
EXPLAINED: dict[str, type] = {
    "A query that has **gone back**": events.GoneBack,
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
    "A **released query** in": query_records.Released,
    "A **location**": query_records.QueryLocation,
    "A **file set**": checkpoint_records.FileSetEntry,
    "A **state** in": metadata.StateSnapshot,
    "Its **measures**": metadata.Measures,
    "A **stage**": metadata.StageDetail,
    "A **folder** is": metadata.FilesDetail,
    "A **loop** is": metadata.LoopDetail,
    "A **frame** has": metadata.FrameDetail,
    "A **table by key** is": metadata.KeyedDetail,
    "**Parts** are": part_records.PartsDetail,
    "A **stored part**": part_records.Part,
    "The **progress of a stage in parts**": part_records.PartsProgress,
    "The **metrics** of": metadata.Metrics,
    "A **query** stores": query_details.QueryDetail,
    "An edge is what": query_details.Edge,
    "A file set is": file_records.FileSet,
    "A **file**": file_records.File,
    "A **sink** stores": transactions.SinkDetail,
    "A **transaction** is": transactions.Transaction,
    "An **origin**": transactions.Origin,
    "A **version of a sink**": metadata.SinkVersion,
    "A **sink** in the snapshot": transactions.SinkRecord,
    "An **entry of a log**": sink_log.LogEntry,
    "The **run of a sink**": sink_log.RunOfSink,
    "Beside every 50th entry lies a **snapshot of a log**": sink_log.Contents,
    "`_checkpoint-staging/<transaction>/_transaction`": staging.Staged,
    "Its **process**": liveness.Process,
    "A **running query**": liveness.QueryProgress,
    "**Earliest offsets**": liveness.EarliestOffsets,
}


def test_every_object_has_an_example() -> None:
    assert set(EXAMPLES) == {"Entry", "Boundary", "Stub", *READERS}


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
    assert rows_with(STATE_MACHINE, rf".*`{kind}`.*"), "docs/inside/state-machine.md does not say what it does"
    (table,) = [table for _, table in tables(FORMATS) if table[0][0] == "`kind`"]
    (row,) = [row for row in table if row[0] == f"`{kind}`"]
    assert own_fields(events.KINDS[kind]) <= set(NAME.findall(row[1])), "docs/inside/formats-events.md lacks a field"
    for before, table in tables(FORMATS):
        if before.startswith(f"The fields of `{kind}`"):
            assert names(table) == own_fields(events.KINDS[kind])


@pytest.mark.parametrize("command", [command.__name__ for command in HANDLERS])
def test_every_command_is_explained(command: str) -> None:
    (row,) = rows_with(STATE_MACHINE, f"`{command}`")
    assert all(row), "say who sends it, when it is done already, and which events it writes"


def test_properties_are_those_that_are_tested() -> None:
    written_out = (ROOT / "tests" / "model" / "properties.py").read_text()
    tested = re.findall(r"^(P\d+) ", written_out, re.MULTILINE)
    assert [row[0] for row in rows_with(PROPERTIES, r"P\d+")] == tested


ATTACK = re.compile(r"\[`(test_\w+)`\]\(\.\./\.\./(tests/\S+\.py)\)")


def test_each_attack_that_is_described_is_a_test() -> None:
    described = [table for _, table in tables(TRUST)]
    assert {table[0][0] for table in described} == {"somebody stores", "somebody with a login"}
    for attack, _, link in chain.from_iterable(table[1:] for table in described):
        found = ATTACK.fullmatch(link)
        assert found, attack
        assert f"def {found[1]}(" in (ROOT / found[2]).read_text(), attack


# -- docs/inside/flink.md ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_table_of_kinds_matches_the_code(kind: Kind) -> None:
    """Shares files, forced, deleted by a policy, subsumes, suspends."""
    (row,) = rows_with(FLINK, rf"`{kind.name}`.*")
    documented = [cell not in ("no", "never") for cell in row[1:]]
    assert documented == [not kind.savepoint, kind.savepoint, not kind.savepoint, kind.subsumes, kind.suspends]
