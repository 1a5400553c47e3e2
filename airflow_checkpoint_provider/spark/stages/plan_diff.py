"""Say in one short line for the log what changed between two plans. Runs in the Spark driver.

It never ends a stage: if the stored plan cannot be read, the line only says that nothing can be compared.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from typing import Any

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.spark.stages.captured import changed
from airflow_checkpoint_provider.spark.stages.plan import TREE, Plan
from airflow_checkpoint_provider.spark.stages.redaction import Hide
from airflow_checkpoint_provider.storage.base import Store

LONGEST = 160  # characters of the line
LARGEST = 16 * 1024 * 1024  # bytes of a stored plan
COMPARED = 300  # different lines of each plan: 0.3 s at the worst, and 9 s for 1,000
IDS = re.compile(r"#\d+L?\b")
CAST = re.compile(r"\bcast\(([^()]*)\)")
TOKENS = re.compile(r"[\w.\-:'/]+|\s+|[^\w\s]")
OPENING = set("([{,)")
NEWEST = "the newest version"


def difference_from_stored(store: Store, key: str, new: Plan, hide: Hide) -> str:
    """Return in one line the change from the plan stored at ``key`` to ``new``, or why the two cannot be compared.

    ``hide`` redacts the stored plan, too: it may have been stored before the session had a pattern.
    """
    try:
        body = store.read_range(key, 0, LARGEST + 1)
        if body is None:
            return "the text of the stored plan is gone"
        if len(body) > LARGEST:
            return f"the text of the stored plan is longer than {LARGEST} bytes, too long to compare"
        old = Plan.from_bytes(body, key)
    except CheckpointError as error:
        return f"the text of the stored plan cannot be read ({error.message})"
    try:
        return difference(old.redacted(hide), new)
    except Exception as error:  # noqa: BLE001  # another shape can fail anywhere, and the stage must go on
        return f"the stored plan is not of the shape that this version writes ({_cut(repr(error), 80)})"


def difference(old: Plan, new: Plan) -> str:
    """Return in one line the change from ``old`` to ``new``: a literal, path, option, conf, alias or column.

    If all differences are hidden, the line says so. If there are many, only the last ``COMPARED`` lines are compared; the line says that,
    too.
    """
    if (old.text, old.leaves, old.captured) == (new.text, new.leaves, new.captured):
        return "a text that the session's redaction hides"
    comparisons: tuple[Callable[[Plan, Plan], str | None], ...] = (_conf, _leaf, _captured, _line, _schema)
    line = next((line for compare in comparisons if (line := compare(old, new))), None)
    return _cut(line or f"the plan differs ({_count(old.text, new.text)} lines)", LONGEST)


def _conf(old: Plan, new: Plan) -> str | None:
    before, after = (
        dict(line[5:].split("=", 1) for line in _head(plan) if line.startswith("conf ")) for plan in (old, new)
    )
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            return f"{name}: {_change(before.get(name, ''), after.get(name, ''))}"
    return None


def _leaf(old: Plan, new: Plan) -> str | None:
    if len(old.leaves) != len(new.leaves):
        return None
    return next((_changed_leaf(a, b) for a, b in zip(old.leaves, new.leaves, strict=True) if a != b), None)


def _changed_leaf(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    if old["leaf"] != new["leaf"]:
        return f"its input: {_change(old['leaf'], new['leaf'])}"
    if "file_set" in old:
        same = old["uid"] == new["uid"]
        return (
            f"its input, stage '{new['uid']}', was computed again"
            if same
            else f"its input: stage {_change(old['uid'], new['uid'])}"
        )
    if old.get("paths") != new.get("paths"):
        return _paths(old["paths"], new["paths"])
    if old.get("version") != new.get("version"):
        return f"its input: {_change(old.get('version', NEWEST), new.get('version', NEWEST))}"
    if "rows" in old:
        return "the rows that the driver gives to it"
    return f"an option of its input ({_cut(', '.join(new.get('options', ())), 80)})"


def _paths(old: list[str], new: list[str]) -> str:
    removed, added = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    if removed and added:
        return f"its input: {_change(_tail(removed[0]), _tail(added[0]))}{_more(len(added) - 1)}"
    if added:
        return f"its input: `{_tail(added[0])}` added{_more(len(added) - 1)}"
    return f"its input: `{_tail(removed[0])}` removed{_more(len(removed) - 1)}"


def _captured(old: Plan, new: Plan) -> str | None:
    names = changed(old.captured, new.captured)
    return f"the value of `{_cut(names[0], 40)}` in a Python function{_more(len(names) - 1)}" if names else None


def _line(old: Plan, new: Plan) -> str | None:
    """Return the deepest line of the analysed trees that differs. The lines above it mostly repeat the difference."""
    before, after, cut = _different(_tree(old), _tree(new))
    changes = _changes(before, after)
    if not changes:
        return None
    how, i1, i2, j1, j2 = changes[-1]
    if how == "insert":
        line = f"`{_cut(after[j2 - 1], 100)}` added{_more(j2 - j1 - 1)}"
    elif how == "delete":
        line = f"`{_cut(before[i2 - 1], 100)}` removed{_more(i2 - i1 - 1)}"
    else:
        line = _tokens(before[i2 - 1], after[j2 - 1])
    return f"{line} (of the last {COMPARED} lines)" if cut else line


def _tokens(old: str, new: str) -> str:
    """Return the difference within one line, and the words before it up to the nearest bracket or comma."""
    before, after = TOKENS.findall(old), TOKENS.findall(new)
    first = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    last = 0
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    removed, added = ("".join(tokens[first : len(tokens) - last]).strip() for tokens in (before, after))
    if not removed or not added:
        return f"`{_cut(removed or added, 100)}` {'removed' if removed else 'added'}"
    start = first
    while start > max(0, first - 6) and before[start - 1] not in OPENING:
        start -= 1
    return _change("".join(before[start:first]).lstrip() + removed, added)


def _schema(old: Plan, new: Plan) -> str | None:
    before, after = (
        {field["name"]: field for field in json.loads(_head(plan)[0].removeprefix("schema "))["fields"]}
        for plan in (old, new)
    )
    for name in (name for name in after if name in before and before[name] != after[name]):
        part = next(part for part in after[name] if before[name].get(part) != after[name][part])
        return f"column `{_cut(name, 40)}`, {part}: {_change(str(before[name].get(part)), str(after[name][part]))}"
    return None


def _head(plan: Plan) -> list[str]:
    return plan.text.partition("\nanalysed\n")[0].split("\n")


def _tree(plan: Plan) -> list[str]:
    """Return the lines of the analysed tree without indentation, ids and casts, which change with any other change."""
    tree = plan.text.partition("\nanalysed\n")[2].partition("\nexact\n")[0]
    return [CAST.sub(_without_type, IDS.sub("", line.lstrip(TREE))) for line in tree.split("\n")]


def _without_type(cast: re.Match[str]) -> str:
    value, separator, _ = cast[1].rpartition(" as ")
    return value if separator else cast[0]


def _different(old: list[str], new: list[str]) -> tuple[list[str], list[str], bool]:
    """Return both without the lines that they share at begin and end, the last ``COMPARED`` of each; and whether lines were cut."""
    shorter = min(len(old), len(new))
    first = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    last = next((i for i in range(shorter - first) if old[-1 - i] != new[-1 - i]), shorter - first)
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    return before[-COMPARED:], after[-COMPARED:], max(len(before), len(after)) > COMPARED


def _changes(old: list[str], new: list[str]) -> list[tuple[str, int, int, int, int]]:
    opcodes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [change for change in opcodes if change[0] != "equal"]


def _count(old: str, new: str) -> str:
    before, after, cut = _different(old.split("\n"), new.split("\n"))
    if cut:
        return f"more than {COMPARED}"
    return str(sum(max(i2 - i1, j2 - j1) for _, i1, i2, j1, j2 in _changes(before, after)))


def _change(old: str, new: str) -> str:
    return f"`{_cut(old, 50)}` → `{_cut(new, 50)}`"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _cut(text: str, longest: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _tail(path: str) -> str:
    return path if len(path) <= 50 else "…" + path[-49:]
