"""Each command of ``checkpoints`` in the documentation is understood by its parser. Runs anywhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli.main import parser
from airflow_checkpoint_provider.cli.verbs import VERBS, name

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_BLOCK = re.compile(r"^(?:\w+=\$\()?(?:airflow )?checkpoints ([^#\n)]*)", re.MULTILINE)
IN_TEXT = re.compile(r"`(?:airflow )?checkpoints ([^`]+)`")
OPTIONS = {name(verb): {flag for flags, _ in arguments for flag in flags} for verb, arguments in VERBS.items()}
EVERYWHERE = {"--conn-id", "--root", "--help", "--no-wait"}


def texts(page: Path) -> tuple[list[str], list[str]]:
    """Return the commands that a page shows in blocks, and those that its text names, perhaps in short."""
    text = page.read_text(encoding="utf-8")
    shown = [found for block in BLOCK.findall(text) for found in IN_BLOCK.findall(block.replace("\\\n", " "))]
    return shown, [" ".join(found.split()) for found in IN_TEXT.findall(text)]


FOUND = {page: texts(page) for page in PAGES}
SHOWN = [(page, command) for page, (shown, _) in FOUND.items() for command in shown]
NAMED = [(page, command) for page, (_, named) in FOUND.items() for command in named]


def test_commands_are_found() -> None:
    assert len(SHOWN) > 20
    assert len(NAMED) > 40


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_command_that_is_shown_is_understood(page: Path, command: str) -> None:
    words = shlex.split(re.sub(r"--conn-id \S+", "", command))
    assert parser().parse_args(words).verb


@pytest.mark.parametrize(("page", "command"), NAMED, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_command_that_is_named_has_its_verb_and_options(page: Path, command: str) -> None:
    without_root = re.sub(r"^--root \S+ ?", "", command.partition(" -- ")[0])
    verb, *words = without_root.split() or ["…"]
    assert verb in OPTIONS or verb in ("VERB", "…"), "no such verb"
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert options <= OPTIONS.get(verb, options) | EVERYWHERE
