"""The options and the confs of ``spark-submit``, by its own order of precedence. Runs anywhere; reads files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DEPLOY_MODE = "spark.submit.deployMode"
PY_FILES = "spark.submit.pyFiles"
_DEFAULTS = "spark-defaults.conf"
_SWITCHES = ("--supervise", "--verbose", "-v", "--version", "--help", "-h", "--usage-error")  # options without a value

# A file of properties, as Java reads it: a key ends at a blank, "=" or ":" that no backslash precedes
_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def program_in(words: Sequence[str]) -> int | None:
    """Return the place of ``spark-submit`` in the words of a command; None if it calls another program."""
    return next((at for at, word in enumerate(words) if word.rpartition("/")[2] == "spark-submit"), None)


def split_options(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split what follows ``spark-submit`` into its options, and the application with its arguments. A switch has an empty value."""
    options, at = list[tuple[str, str]](), 0
    while at < len(words) and words[at].startswith("-"):
        name, joined, value = words[at].partition("=") if words[at].startswith("--") else (words[at], "", "")
        if not joined and name not in _SWITCHES and at + 1 < len(words):
            at += 1
            value = words[at]
        options.append((name, value))
        at += 1
    return options, list(words[at:])


def confs_in(options: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the confs among the options of ``spark-submit``; of equal names, the last counts."""
    return dict(value.partition("=")[::2] for name, value in options if name in ("--conf", "-c"))


def submitted_confs(
    conf: Mapping[str, Any], properties_file: str | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the confs that hold where the command line has no option: those of ``conf``, then those of ``properties_file``.
    Without such a file, those of the worker's ``spark-defaults.conf``.

    ``environment`` is that of ``spark-submit``. If it names neither SPARK_CONF_DIR nor SPARK_HOME, the defaults are not found.
    """
    file = Path(properties_file) if properties_file else _defaults(environment)
    return {**(_properties(file) if file else {}), **{key: str(value) for key, value in conf.items()}}


def _defaults(environment: Mapping[str, str]) -> Path | None:
    if folder := environment.get("SPARK_CONF_DIR"):
        return Path(folder, _DEFAULTS)
    return Path(home, "conf", _DEFAULTS) if (home := environment.get("SPARK_HOME")) else None


def _properties(file: Path) -> dict[str, str]:
    """Return the confs in a file; none if it cannot be read: ``spark-submit`` runs here too, and says so if that is an error."""
    try:
        text = file.read_text("utf-8", errors="replace")
    except OSError:
        return {}
    matches = (_PROPERTY.fullmatch(line) for line in _logical_lines(text))
    return {_unescaped(match[1]): _unescaped(match[2]).strip(" \t") for match in matches if match}


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines that hold a property. A backslash at the end of a line continues it."""
    begun = ""
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun
        begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda match: chr(int(match[1], 16)) if match[1] else _CONTROL.get(match[2], match[2]),
        text,
    )
