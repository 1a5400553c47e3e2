"""The command ``python -m benchmarks``: answer questions, store the answers, write the page. Runs on Linux."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import (
    checkpoints,
    histories,
    hot_savepoints,
    key_tables,
    loops,
    parts,
    restore,
    retry,
    sinks,
    snapshots,
    stages,
    startup,
    tables,
    takeovers,
)
from benchmarks.answers import Question, Result, Size, read_results, write_results
from benchmarks.machine import this_machine
from benchmarks.page import PAGE, RESULTS, write_page

CHECKOUT = Path(__file__).parents[1]
QUESTIONS: tuple[Question, ...] = (  # in the order of the page
    sinks.QUESTION,
    tables.QUESTION,
    stages.QUESTION,
    loops.QUESTION,
    key_tables.QUESTION,
    retry.QUESTION,
    parts.QUESTION,
    restore.QUESTION,
    snapshots.QUESTION,
    startup.QUESTION,
    checkpoints.QUESTION,
    histories.QUESTION,
    hot_savepoints.QUESTION,
    takeovers.QUESTION,
)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what checkpoints cost beside what a user would use instead, and write docs/inside/performance.md.",
        epilog="\n".join(["questions:", *(f"  {question.name:16}{question.title}" for question in QUESTIONS)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--full", action="store_const", const=Size.FULL, dest="size", help="the large sizes, and more rounds"
    )
    sizes.add_argument(
        "--tiny", action="store_const", const=Size.TINY, dest="size",
        help="seconds, to see that the benchmarks work; needs --out, because the figures say nothing",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=[question.name for question in QUESTIONS],
        help="only these questions; the stored answers of the others stay",
    )  # fmt: skip
    parser.add_argument(
        "--page", action="store_true", help="measure nothing: write the page and its charts of the stored answers"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=CHECKOUT,
        metavar="DIR",
        help="write results and page below DIR; default: the checkout",
    )
    parser.set_defaults(size=Size.SMALL)
    given = parser.parse_args(words)
    if given.size is Size.TINY and given.out == CHECKOUT:
        parser.error("--tiny needs --out DIR")
    return given


def answered(question: Question, size: Size) -> Result:
    """Return the result of one question. Says on stderr that it is asked, and how long it took."""
    print(f"{question.name}: {question.title} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    answer = question.run(size)
    print(f"{question.name}: answered after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return Result(question.title, size, this_machine(), answer)


def main(words: Sequence[str] | None = None) -> None:
    """Answer the questions, store each answer at once, so that nothing is lost if a later one fails, and write the page."""
    given = arguments(words)
    results = read_results(given.out / RESULTS)
    for question in () if given.page else QUESTIONS:
        if given.only is None or question.name in given.only:
            results[question.name] = answered(question, given.size)
            write_results(given.out / RESULTS, results)
    write_page(CHECKOUT, given.out, results)
    print(f"see {given.out / PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
