"""The confs that ``spark-submit`` has besides its options, by its own order of precedence. Runs anywhere; reads files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DEPLOY_MODE = "spark.submit.deployMode"
PY_FILES = "spark.submit.pyFiles"
_DEFAULTS = "spark-defaults.conf"

# A file of properties, as Java reads it: a key ends at a blank, "=" or ":" that no backslash precedes
_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


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
