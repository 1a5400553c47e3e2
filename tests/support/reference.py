"""The parts of the documentation that are made of the code: verbs, options, codes, modules. Runs where Airflow is."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import airflow_checkpoint_provider
from airflow_checkpoint_provider.cli.main import parser
from airflow_checkpoint_provider.get_provider_info import get_provider_info
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from tests.support.blocks import filled
from tests.support.codes import CODES

PACKAGE = Path(airflow_checkpoint_provider.__file__).parent
PARAM = re.compile(r":param (\w+): (.*?)(?=\n\s*:param |\n\n|\Z)", re.DOTALL)


def written(page: str) -> str:
    """Return the page with each block made anew."""
    return filled(page, lambda name: f"\n{PARTS[name]()}\n\n")


def table(*rows: tuple[str, ...]) -> str:
    """Return a table, whose first row is its head."""
    head, *others = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *others])


# -- the command line ----------------------------------------------------------------------------------------------------


def verbs() -> str:
    """Return a section for each verb: what it does, how it is called, its arguments."""
    (choices,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join("\n".join(_verb(name, verb)) for name, verb in choices.choices.items())


def _verb(name: str, verb: argparse.ArgumentParser) -> Iterator[str]:
    hidden = ("help", "output")  # the page explains -o once
    actions = [action for action in verb._actions if action.help != argparse.SUPPRESS and action.dest not in hidden]
    yield from (f"### {name}", "", str(verb.description), "", "```text")
    yield " ".join(["checkpoints", name, *(_named(action) for action in actions if _is_named(action)), "[OPTIONS]"])
    yield from ("```", "")
    yield from (f"- {', '.join(f'`{form}`' for form in _forms(action))}: {action.help}." for action in actions)


def _is_named(action: argparse.Action) -> bool:
    return action.required or not action.option_strings


def _named(action: argparse.Action) -> str:
    text = " ".join(filter(None, [*action.option_strings[:1], str(action.metavar)]))
    return text if action.required else f"[{text}]"


def _forms(action: argparse.Action) -> list[str]:
    value = action.metavar or ("{" + ",".join(action.choices) + "}" if action.choices else None)
    forms = action.option_strings or [""]
    return [" ".join(filter(None, [form, None if action.nargs == 0 else str(value or "")])) for form in forms]


# -- settings ------------------------------------------------------------------------------------------------------------


def checkpointing() -> str:
    """Return each option of ``CheckpointConfig`` with its default, as its docstring tells it."""
    told, default = parameters(CheckpointConfig), CheckpointConfig()
    shown = {field.name: repr(getattr(default, field.name)).replace("'", '"') for field in fields(CheckpointConfig)}
    return "\n".join(f"- `{name}` (default `{value}`): {told[name]}" for name, value in shown.items())


def parameters(documented: type) -> dict[str, str]:
    """Return the parameters that the docstrings of a class and of its bases in this package tell; that of the class wins."""
    ours = (base for base in reversed(documented.__mro__) if base.__module__.startswith("airflow_checkpoint_provider."))
    found = (each for base in ours for each in PARAM.findall(inspect.cleandoc(vars(base).get("__doc__") or "")))
    return {name: " ".join(text.replace("``", "`").split()) for name, text in found}


def connection() -> str:
    """Return the fields of the connection, as its form tells them."""
    (kind,) = get_provider_info()["connection-types"]
    form = kind["ui-field-behaviour"]
    logins = [(f"`{name}`", label, form["placeholders"].get(name, "")) for name, label in form["relabeling"].items()]
    others = [(f"`{name}`", field["label"], field["description"]) for name, field in kind["conn-fields"].items()]
    return table(("field", "label", ""), *others[:1], *logins, *others[1:])


def configuration() -> str:
    """Return the options of Airflow's configuration."""
    sections = get_provider_info()["config"].items()
    return table(
        ("section", "option", ""),
        *(
            (f"`[{section}]`", f"`{name}`", option["description"].replace("``", "`"))
            for section, content in sections
            for name, option in content["options"].items()
        ),
    )


def codes() -> str:
    """Return each code of an error or a log line, and what it means."""
    return table(("code", "meaning"), *CODES.items())


# -- the modules ---------------------------------------------------------------------------------------------------------


def modules() -> str:
    """Return a section for each folder of the package, and in it the first sentences of its modules."""
    sections: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py"), key=lambda file: (file.parent.parts, file.name)):
        module = ast.parse(file.read_text(encoding="utf-8"))
        has_code = any(not isinstance(node, ast.Expr) for node in module.body)  # more than a docstring
        if has_code and "example_dags" not in file.parts:
            folder, said = (
                file.parent.relative_to(PACKAGE).as_posix(),
                (ast.get_docstring(module) or "").split("\n\n")[0],
            )
            line = f"- `{file.relative_to(PACKAGE)}`: {' '.join(said.replace('``', '`').split())}"
            sections.setdefault("The package itself" if folder == "." else f"{folder}/", []).append(line)
    return "\n\n".join("\n".join([f"## {title}", "", *lines]) for title, lines in sections.items())


PARTS: dict[str, Callable[[], str]] = {
    "verbs": verbs,
    "checkpointing": checkpointing,
    "connection": connection,
    "configuration": configuration,
    "codes": codes,
    "modules": modules,
}
