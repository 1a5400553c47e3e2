"""What the stories of Delta and of Iceberg sinks share: runs, transactions, and a driver that sleeps at a step. Runs in the Spark driver."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import CheckpointError, OverwrittenSince, StoreUnavailable
from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.spark import OpenSink, SinkContext

spark = SparkSession.builder.getOrCreate()
MONDAY = SinkContext(
    spark=spark,
    uid="report",
    job="daily",
    history="file:///lake/runs/monday",
    incarnation="a1",
    run="monday it's",
    generation=0,
    run_began=0.0,
    attempt=1,
    temporary=nullcontext,
)
TUESDAY = replace(MONDAY, history="file:///lake/runs/tuesday", incarnation="b2", run="tuesday")
RETRY = replace(MONDAY, attempt=2)
STORIES: dict[str, Callable[[str], None]] = {}


def story(tell: Callable[[str], None]) -> Callable[[str], None]:
    STORIES[tell.__name__] = tell
    return tell


def name(number: int, epoch: int = 1) -> str:
    return f"{epoch}-{number:016x}"


def prepared(
    sink: OpenSink, number: int, *ids: int, replaces: tuple[str, ...] = (), run: str = MONDAY.run
) -> Transaction:
    """Stage rows, as write ``number`` of a run."""
    frame = spark.createDataFrame([(each, each % 2) for each in ids], "id long, half long")
    held = sink.prepare(frame, name(number), number)
    assert held.rows == len(ids)
    assert json.loads(json.dumps(held.content)) == held.content
    return Transaction(
        name=name(number),
        version=number,
        run=run,
        write=0,
        origin=Origin(plan="p", inputs="i"),
        rows=held.rows,
        prepared=held.content,
        replaces=replaces,
    )


def removed(sink: OpenSink, number: int, *replaces: str) -> Transaction:
    """Stage what takes out the rows of other writes, as number ``number``."""
    held = sink.prepare_removal(name(number), number)
    assert held
    assert held.rows == 0
    return Transaction(
        name=name(number),
        version=number,
        run=MONDAY.run,
        write=0,
        origin=Origin(plan="", inputs=""),
        prepared=json.loads(json.dumps(held.content)),
        replaces=replaces,
        removes=True,
    )


def refused(kind: type[CheckpointError], text: str, act: Callable[[], object]) -> None:
    """Let something be refused with an error that says ``text``."""
    try:
        act()
    except kind as error:
        found = str(error)
    else:
        raise AssertionError("it was not refused")
    assert text in found, found


def overwritten_though_the_clean_up_fails(monday: OpenSink, tuesday: OpenSink) -> None:
    """Let Monday's commit be refused, although it cannot clean up: a commit that was tried again would find the abort, and the job would
    end without its rows.
    """
    late = prepared(monday, 1, 1)
    assert tuesday.commit(prepared(tuesday, 2, 2))
    abort = monday.abort

    def fails(names: Collection[str]) -> tuple[str, ...]:
        abort(names)
        raise StoreUnavailable("503 slow down")

    monday.abort = fails  # type: ignore[method-assign]
    refused(OverwrittenSince, "a run that began later has overwritten it", lambda: monday.commit(late))


class Steps:
    """Runs ``meanwhile`` just before step ``number`` of the first process."""

    def __init__(self, steps: list[tuple[type, str]], number: int, meanwhile: Callable[[], None]) -> None:
        self._steps, self.number, self.meanwhile = steps, number, meanwhile
        self.count, self.slept = 0, False

    @contextmanager
    def asleep(self) -> Iterator[None]:
        real = {(owner, step): getattr(owner, step) for owner, step in self._steps}
        for owner, step in self._steps:
            setattr(owner, step, self._waiting(real[owner, step]))
        try:
            yield
        finally:
            for (owner, step), function in real.items():
                setattr(owner, step, function)

    def _waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **options: Any) -> Any:
            if not self.slept:
                self.count += 1
                if self.count == self.number:
                    self.slept = True
                    self.meanwhile()
            return function(*args, **options)

        return wait


def tell_stories(place: Callable[[str], str]) -> None:
    """Tell the stories that ``STORIES`` names, and print the outcome of each. ``place`` gives a story a table of its own."""
    outcomes = dict[str, str]()
    for title in os.environ["STORIES"].split():
        began = time.monotonic()
        try:
            STORIES[title](place(title))
            outcomes[title] = "ok"
        except Exception:  # noqa: BLE001 - each story is told
            outcomes[title] = traceback.format_exc()
        print(title, f"{time.monotonic() - began:.1f} s", outcomes[title], flush=True)
    print("RESULT", json.dumps(outcomes), flush=True)
    spark.stop()
