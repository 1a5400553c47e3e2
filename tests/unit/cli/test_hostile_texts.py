"""Stored texts that try to forge a row or to steer a terminal: each verb prints them as text. Runs anywhere."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.cli.main import main
from airflow_checkpoint_provider.coordinator.liveness import Beats
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.storage import LocalStore, open_store
from tests.fuzz.hostile import (
    FORGED,
    HOSTILE,
    JOB,
    KEYS,
    OBJECTS,
    ROOT,
    RUN,
    SAVEPOINT,
    TARGET,
    Place,
    places,
    planted,
    planted_everywhere,
)
from tests.support.recorded import Recorded, three_stages

OUTPUTS = ("table", "plain", "json")
NOT_PRINTED = ("seal", "heartbeat")
"""No verb prints a text of a seal that is not checked when the seal is read, and none here waits for a driver."""
VERBS: list[tuple[str, ...]] = [
    ("jobs",),
    ("list", JOB),
    ("list", JOB, RUN),
    ("show", JOB),
    ("show", JOB, RUN),
    *(("show", JOB, f"chk-{number}") for number in (1, 2, 3, 4)),
    ("show", JOB, "--statistics"),
    ("story", JOB),
    ("story", JOB, "--attempt", "1"),
    ("verify", f"{ROOT}/{KEYS.checkpoint(2)}"),
    ("verify", f"{TARGET}/{SAVEPOINT}"),
    ("prune", JOB, "--dry-run"),
    ("restore", JOB, "--from", "chk-2", "--dry-run"),
    ("restore", JOB, "--from", f"{TARGET}/{SAVEPOINT}", "--claim", "--dry-run"),
    ("dispose", f"{TARGET}/{SAVEPOINT}", "--dry-run"),
    ("dispose", f"{TARGET}/{SAVEPOINT}", "--forget", "--dry-run"),
    ("stop", JOB, "--dry-run"),
]

FIELDS = [(name, place) for name, (_, data) in OBJECTS.items() for place in sorted(set(places(data)))]
each_field = pytest.mark.parametrize(
    ("name", "place"), FIELDS, ids=lambda part: part if isinstance(part, str) else ".".join(part)
)


def put(name: str, data: Any) -> None:
    """Store ``data`` in the place of a golden file."""
    key = OBJECTS[name][0]
    store = open_store(TARGET if key.startswith(SAVEPOINT) else ROOT)
    store.overwrite(key, canonical(data))


@pytest.fixture(autouse=True)
def _history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a history, a savepoint and its claim."""
    monkeypatch.setattr(Beats, "configured", lambda: Beats(every=0.001, wait=0.003, still=0.006))
    for name in ("entry-boundary", "seal", "savepoint-claimed", "heartbeat"):
        put(name, OBJECTS[name][1])


def check(out: str, allowed: str) -> None:
    """Check that nothing in ``out`` steers a terminal, and that no line of it begins with the forged row."""
    assert all(letter.isprintable() or letter in allowed for letter in out), out
    assert not any(line.lstrip().startswith(FORGED) for line in out.splitlines()), out


def texts(data: Any) -> Iterator[str]:
    """Yield each text in JSON."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for part in data.values() if isinstance(data, dict) else data:
            yield from texts(part)


def run(verb: tuple[str, ...], output: str, capsys: pytest.CaptureFixture[str], root: str = ROOT) -> str:
    """Run a verb, check what it prints, and return that."""
    main(["--root", root, *verb, "--output", output])
    out, err = capsys.readouterr()
    check(out, "\n\t" if output == "plain" else "\n")
    check(err, "\n")
    if output == "json" and out:
        assert all(HOSTILE in text for text in texts(json.loads(out)) if FORGED in text)
    return out + err


@pytest.mark.parametrize("name", OBJECTS)
def test_hostile_text_in_all_fields_is_printed_as_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(name, planted_everywhere(name))
    printed = [run(verb, output, capsys) for verb in VERBS for output in OUTPUTS]
    assert any(r"\x1b[2J" in text for text in printed) == (name not in NOT_PRINTED)


@each_field
def test_hostile_text_in_one_field_is_printed_as_text(
    name: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = OBJECTS[name]
    put(name, planted(data, place))
    run(("list", JOB), "table", capsys)
    run(("restore", JOB, "--from", f"{TARGET}/{SAVEPOINT}", "--claim", "--dry-run"), "table", capsys)


@pytest.mark.slow
@each_field
def test_hostile_text_in_one_field_is_printed_as_text_by_each_verb(
    name: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = OBJECTS[name]
    put(name, planted(data, place))
    for verb in VERBS:
        for output in OUTPUTS:
            run(verb, output, capsys)


def test_hostile_name_of_a_folder_is_printed_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name on a disk cannot hold a slash, and is shorter than a text."""
    name = HOSTILE.replace("/", "")
    recorded = Recorded(LocalStore(str(tmp_path)))
    three_stages(recorded)
    recorded.ended("03:00:00")
    history = tmp_path / recorded.keys.prefix
    for folder in (f"runs/{name}/journal/0000000000000000", f"runs/{name}/heartbeat/{name}"):
        (tmp_path / "jobs" / recorded.job / folder).parent.mkdir(parents=True)
        (tmp_path / "jobs" / recorded.job / folder).write_text("{}")
    for folder in (f"state/{name}/1-a", f"state/clean/1-{name}", f"chk-{name}", f"chk-9/{name}", name):
        (history / folder).mkdir(parents=True)
        (history / folder / name).write_text("x")
    (tmp_path / "jobs" / name).mkdir()
    told = ""
    for verb in (
        ("jobs",),
        *((verb, recorded.job) for verb in ("list", "show", "story")),
        ("prune", recorded.job, "--dry-run"),
    ):
        for output in OUTPUTS:
            told += run(verb, output, capsys, str(tmp_path))
    assert r"\x1b[2J" in told


def test_hostile_text_is_printed_as_text_in_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    put("entry-boundary-savepoints", planted_everywhere("entry-boundary-savepoints"))
    main(["--root", ROOT, "list", JOB])
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)  # colours
    check(out, "\n")
    assert r"\x1b[2J" in out


def test_names_of_every_language_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    _, data = OBJECTS["entry-boundary-savepoints"]
    put("entry-boundary-savepoints", json.loads(json.dumps(data).replace("before the change", "перед 変更 é")))
    for output in ("table", "plain"):
        assert "перед 変更 é" in run(("list", JOB), output, capsys)
    assert "перед 変更 é" in texts(json.loads(run(("list", JOB), "json", capsys)))
