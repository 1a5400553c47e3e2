"""What does one more checkpoint cost after many others? Runs on Linux.

Three things can grow: the number of files in a checkpoint, of retained checkpoints, and of entries in the journal. All are
measured on a local disk; the requests are the same in every store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.file_records import File, FileSet, Footer
from airflow_checkpoint_provider.storage import MemoryStore
from benchmarks.answers import Answer, Chart, Finding, Goal, Question, Size
from benchmarks.checkpoints import CPU, REQUESTS, measured
from benchmarks.lives import Life, copied, lengthened
from benchmarks.rounds import Measured, Run, Variant, measure
from benchmarks.stores import local_store
from tests.support.acknowledgements import acknowledgement, driver, file_set, stage
from tests.support.faults import FaultyStore
from tests.support.garbage import retire
from tests.support.journals import open_journal

ROUNDS = {Size.TINY: 2, Size.SMALL: 7, Size.FULL: 25}
DELETIONS = "ms of deletions beside it"
A_RUN = 16  # checkpoints; with their deletions they fill one segment of the journal, so each run writes one boundary
CONSTANT = Goal("P8", 1.1)


@dataclass(frozen=True)
class Sizes:
    """How much there is: entries of histories that are lived through, and of one that is lengthened."""

    files: tuple[int, ...]
    retained: tuple[int, ...]
    entries: tuple[int, ...]
    lengthened: int

    @property
    def all_entries(self) -> tuple[int, ...]:
        return (*self.entries, self.lengthened)


SIZES = {
    Size.TINY: Sizes((10, 100), (1, 5), (70, 150), 1_000),
    Size.SMALL: Sizes((100, 1_000, 10_000), (1, 10, 100, 1_000), (100, 1_000, 10_000), 1_000_000),
    Size.FULL: Sizes((100, 1_000, 10_000), (1, 10, 100, 1_000), (100, 1_000, 10_000, 100_000), 1_000_000),
}


# -- the names of the variants -------------------------------------------------------------------------------------------


def sealing(files: int) -> str:
    return f"{files:,} files acknowledged until completed"


def one_more(number: int, what: str) -> str:
    return f"one more checkpoint, {number:,} {what}"


def reading(number: int, what: str) -> str:
    return f"a fresh start reads, {number:,} {what}"


RETAINED, ENTRIES = "retained", "entries"


# -- the variants --------------------------------------------------------------------------------------------------------


class Sealing:
    """A checkpoint of one stage whose files were written by so many tasks, one by each."""

    def __init__(self, store: FaultyStore, files: int) -> None:
        self.store, self.coordinator = store, driver(store)
        footer = Footer(bytes=1234, checksum="0a1b2c3d")
        self.files = tuple(
            File(name=f"part-{n:05d}-1f0c.c000.zstd.parquet", bytes=4096 + n, rows=7, footer=footer)
            for n in range(files)
        )

    def run(self) -> Run:
        coordinator, number = self.coordinator, self.coordinator.state.next_id
        path = file_set("clean", 1, f"nonce{number}").path
        coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0))
        ack = acknowledgement(number, stage("clean", number, made_of=FileSet(path=path, files=self.files)))

        def work() -> None:
            coordinator.acknowledge(ack)
            coordinator.complete(number)

        run = measured(self.store, work)
        retire(coordinator)
        return run


class OneMore:
    """Checkpoints at the end of a history that is in ``store``."""

    def __init__(self, store: FaultyStore, retained: int) -> None:
        self.store, self.life = store, Life(store, retained)
        self.life.begin_deep()

    def run(self) -> Run:
        """Take some checkpoints; return the mean of one. What deletes beside them is a figure of its own."""
        runs, deletions = [], 0.0
        for _ in range(A_RUN):
            runs.append(measured(self.store, self.life.checkpoint))
            deletions += measured(self.store, self.life.delete_expired).seconds
        return Run(
            sum(run.seconds for run in runs) / A_RUN,
            {
                REQUESTS: max(run.figures[REQUESTS] for run in runs),
                CPU: sum(run.figures[CPU] for run in runs) / A_RUN,
                DELETIONS: deletions * 1000 / A_RUN,
            },
        )

    def read(self) -> Run:
        """Read the history as a process that knows nothing yet."""
        return measured(self.store, lambda: open_journal(self.store).catch_up())


def growing(stack: ExitStack, sizes: Sizes) -> Iterator[tuple[str, int, OneMore]]:
    """Yield what grows, how much of it there is, and a history on the disk that has it."""

    def copy(memory: MemoryStore, retained: int) -> OneMore:
        store = stack.enter_context(local_store())
        copied(memory, Path(store.uri.removeprefix("file://")))
        return OneMore(store, retained)

    for retained in sizes.retained:
        memory = MemoryStore()
        life = Life(memory, retained)
        while len(life.state.retained) < retained:
            life.run()
        yield RETAINED, retained, copy(memory, retained)
    memory = MemoryStore()
    life = Life(memory)
    for entries in sizes.entries:
        while life.state.n < entries:
            life.run()
        yield ENTRIES, entries, copy(memory, 2)
    yield ENTRIES, sizes.lengthened, copy(lengthened(life.state, sizes.lengthened), 2)


def variants(stack: ExitStack, sizes: Sizes) -> Iterator[Variant]:
    for files in sizes.files:
        yield Variant(sealing(files), Sealing(stack.enter_context(local_store()), files).run)
    for what, number, history in growing(stack, sizes):
        yield Variant(one_more(number, what), history.run)
        yield Variant(reading(number, what), history.read)


# -- the answer ----------------------------------------------------------------------------------------------------------


def answer(size: Size) -> Answer:
    sizes, rounds = SIZES[size], ROUNDS[size]
    with ExitStack() as stack:
        found = measure(list(variants(stack, sizes)), rounds)
    return Answer(rounds, found.load, tuple(findings(found, sizes)), found.costs(), chart(found, sizes))


def findings(found: Measured, sizes: Sizes) -> Iterator[Finding]:
    most = sealing(sizes.files[-1])
    yield Finding(most, found.seconds(most), "s", Goal("P8", 1.0))
    lived, longest = sizes.all_entries[-2:]
    few, many = sizes.retained[0], sizes.retained[-1]
    for named in (one_more, reading):
        goal = CONSTANT if named is one_more else None
        yield found.compared(named(longest, ENTRIES), named(lived, ENTRIES), goal)
        yield found.compared(named(many, RETAINED), named(few, RETAINED), goal)


def chart(found: Measured, sizes: Sizes) -> Chart:
    def line(named: Callable[[int, str], str], numbers: tuple[int, ...], what: str) -> list[tuple[float, float]]:
        return [(number, round(found.seconds(named(number, what)).median * 1000, 3)) for number in numbers]

    return Chart(
        title="One more checkpoint, and a fresh start's read of the journal",
        x="entries of the history, or retained checkpoints",
        y="milliseconds",
        lines={
            f"{title}, over {what}": line(named, numbers, what)
            for title, named in (("one more checkpoint", one_more), ("a fresh start reads", reading))
            for what, numbers in ((ENTRIES, sizes.all_entries), (RETAINED, sizes.retained))
        },
        logarithmic="xy",
    )


QUESTION = Question("histories", "What does one more checkpoint cost after many others?", answer)
