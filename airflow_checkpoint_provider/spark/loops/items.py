"""The items of a loop: compared by a retry, and remembered by a history. Pure. Runs in the Spark driver."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig, ItemsChanged
from airflow_checkpoint_provider.protocol.metadata import digest
from airflow_checkpoint_provider.protocol.records import canonical, cut, refuse_deep
from airflow_checkpoint_provider.spark.state.value import DEEPEST_VALUE
from airflow_checkpoint_provider.text.units import fitting, plural, some

DIGITS = 8  # of the digest of an item. A list that somebody has changed is noticed; nobody has a reason to forge one
LARGEST_ITEM = 4 * 1024  # bytes of JSON: each checkpoint holds all done items of a history
MOST_DONE = 4 * 1024 * 1024  # bytes of all of them
SHOWN = 80  # characters of an item in an error


def item_json(uid: str, item: Any) -> bytes:
    """Return an item as canonical JSON, a tuple as a list. Raises ``InvalidConfig`` for what is no JSON, and for a large item."""
    try:
        body = canonical(item)
        refuse_deep(json.loads(body), DEEPEST_VALUE)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(
            f"loop '{uid}': the item {shown(item)} is no JSON ({cut(str(error))}). A retry must know it again: give text, numbers, or"
            " lists of them, such as str(day)"
        ) from None
    if len(body) > LARGEST_ITEM:
        raise InvalidConfig(
            f"loop '{uid}': the item {shown(item)} has {len(body)} bytes of JSON, {LARGEST_ITEM} are allowed. Give its name or its key"
        )
    return body


def shown(item: Any) -> str:
    """Return an item for an error or a log line."""
    text = repr(item)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def item_digest(body: bytes) -> str:
    """Return by what a retry knows the item of a finished turn again. ``body`` is its JSON."""
    return digest(body)[:DIGITS]


def skip_finished(uid: str, items: Iterator[Any], finished: str, again: str) -> int:
    """Take the items of finished turns out of ``items``. Return their number: fewer, if the list has become shorter.

    ``finished`` holds their digests. Raises ``ItemsChanged`` at the first item that is another one; ``again`` is the command with which
    the run starts over.
    """
    turns = len(finished) // DIGITS
    for turn in range(turns):
        try:
            item = next(items)
        except StopIteration:
            return turn
        if item_digest(item_json(uid, item)) != finished[turn * DIGITS : (turn + 1) * DIGITS]:
            raise ItemsChanged(
                f"loop '{uid}': item {turn + 1} is {shown(item)} now, and was another one when its turn was run."
                f" {plural(turns, 'turn')} {fitting(turns, 'are')} finished. A list may get longer; its beginning must stay. Give the loop"
                f" the items that it had, or let the run start over: {again}"
            )
    return turns


def ended_early(uid: str, count: int, turns: int, again: str) -> ItemsChanged:
    """Return the error for a list of ``count`` items in a changed application, if more ``turns`` are finished.

    Nobody knows what the author wants: another loop of the script may now have the other items, and would run their turns a second time.
    """
    return ItemsChanged(
        f"loop '{uid}': its list ends after {plural(count, 'item')} now, and {plural(turns, 'turn')} {fitting(turns, 'are')} finished. A"
        " list may get longer; its beginning must stay. The changes of a turn cannot be taken back alone. Give the loop the items that it"
        f" had, or let the run start over: {again}"
    )


def left_open(uid: str, reopened: Sequence[Any], again: str) -> ItemsChanged:
    """Return the error for items that this run had done, whose turns count no longer, and that the loop was not given again."""
    count = len(reopened)
    names = some([shown(item) for item in reopened])
    return ItemsChanged(
        f"loop '{uid}': {plural(count, 'item')} of this run {fitting(count, 'were')} done, {fitting(count, 'are')} open again (CKP161), and"
        f" {fitting(count, 'were')} not given again: {names}. No frame and no value has what {fitting(count, 'they')} had changed. Give the"
        f" loop {fitting(count, 'them')} once more, with the data that the turn needs. To do without, let the run start over: {again}"
    )


def refuse_many(uid: str, done: Collection[bytes]) -> None:
    """Raise ``InvalidConfig`` if the done items of a history take too much room in each checkpoint."""
    if (size := sum(map(len, done))) > MOST_DONE:
        raise InvalidConfig(
            f"loop '{uid}': its history has {len(done)} done items in {size} bytes of JSON, {MOST_DONE} are allowed. Give larger pieces"
            " of work, such as one item for a day, or another uid"
        )
