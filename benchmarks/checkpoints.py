"""How long does one checkpoint take? Beside putting its four objects into the same store. Runs on Linux.

Measured from its trigger until it is completed, with the real coordinator over the real store. Each checkpoint has one new state;
the others are handed on, as the earlier stages of a job are. That rows are written and proved before is not part of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from benchmarks.answers import Answer, Finding, Goal, Question, Size, Spread
from benchmarks.rounds import Measured, Run, Variant, joined, measure
from benchmarks.stores import STORES
from tests.support.acknowledgements import acknowledgement, driver, stage
from tests.support.faults import FaultyStore
from tests.support.garbage import retire

STATES = (1, 32, 1000)
FACTOR = {1: 1.3, 32: 1.3, 1000: 2.0}  # of four puts, at most
ROUNDS = {Size.TINY: 2, Size.SMALL: 25, Size.FULL: 150}
NEVER = 10**15  # the number of an entry that nobody writes
OURS, PUTS, ALL = "a checkpoint", "its four puts", "its seven requests"
REQUESTS, CPU = "requests", "ms of CPU"
FLINK = "Flink 2, another run: 7 to 24 ms"


class Job:
    """A job with so many states, of which each checkpoint renews one."""

    def __init__(self, store: FaultyStore, states: int) -> None:
        self.store, self.states = store, states
        self.coordinator = driver(store)
        self.handed_on: list[StateSnapshot] = [stage(f"s{n}", 0) for n in range(states)]
        self.bodies: list[bytes] = []

    def checkpoint(self) -> Run:
        """Take a checkpoint. What older ones leave behind is deleted outside of the measured time, as in a job."""
        number = self.coordinator.state.next_id
        self.handed_on[number % self.states] = stage(f"s{number % self.states}", number)
        before = self.coordinator.state.n
        run = measured(self.store, lambda: take(self.coordinator, number, self.handed_on))
        self.bodies = [self.store.inner.read(key) or b"" for key in written(self.coordinator.keys, number, before)]
        retire(self.coordinator)
        return run


def take(coordinator: Coordinator, number: int, states: list[StateSnapshot]) -> None:
    coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0))
    coordinator.acknowledge(acknowledgement(number, *states))
    coordinator.complete(number)


def measured(store: FaultyStore, work: Callable[[], object]) -> Run:
    """Return the time of ``work``, its requests to the store, and the time for which it kept a processor busy."""
    store.requests.clear()
    began, busy = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    return Run(seconds, {REQUESTS: store.requests.total(), CPU: cpu * 1000})


class Requests:
    """Sends the requests of the last checkpoint of ``job`` again, with or without its reads, under keys of the same form."""

    def __init__(self, job: Job, *, reads: bool) -> None:
        self.job, self.reads = job, reads
        self.keys = Keys(f"{'with' if reads else 'without'}-reads/flights.delays/job")
        self.numbers = itertools.count(1)

    def send(self) -> Run:
        """Put the four objects. Read the seal, and look twice for the boundary that would make an entry void."""
        number, store = next(self.numbers), self.job.store
        keys, absent = written(self.keys, number, before=2 * number), self.keys.entry(NEVER)
        objects = list(zip(keys, self.job.bodies, strict=True))
        read = (keys[2], absent, absent) if self.reads else ()

        def work() -> None:
            for key, body in objects:
                store.create(key, body)
            for key in read:
                store.read(key)

        return measured(store, work)


def written(keys: Keys, number: int, before: int) -> tuple[str, ...]:
    """Return the keys of what checkpoint ``number`` writes after entry ``before``."""
    return keys.entry(before + 1), keys.acknowledgement(number, ""), keys.seal(number), keys.entry(before + 2)


@contextmanager
def variants(states: int, where: str) -> Iterator[tuple[Variant, ...]]:
    """Yield the checkpoint, its puts and its requests, in a store of their own. Each was done once: the connection stands."""
    with STORES[where]() as store:
        job = Job(store, states)
        those = (
            Variant(OURS, job.checkpoint),
            Variant(PUTS, Requests(job, reads=False).send),
            Variant(ALL, Requests(job, reads=True).send),
        )
        for variant in those:
            variant.run()
        yield those


def cases(size: Size) -> Iterator[tuple[str, Measured, tuple[Finding, ...]]]:
    for where, states in itertools.product(STORES, STATES):
        with variants(states, where) as those:
            found = measure(those, ROUNDS[size])
        yield f"{states:,} {'state' if states == 1 else 'states'}, {where}", found, findings(found, states)


def findings(found: Measured, states: int) -> tuple[Finding, ...]:
    known = FLINK if states == 1 else ""
    return (
        found.compared(OURS, PUTS, Goal("P5", FACTOR[states])),
        found.compared(OURS, ALL),
        Finding("trigger until completed", found.seconds(OURS), "s", known=known),
    )


def answer(size: Size) -> Answer:
    found = list(cases(size))
    most = max(run.figures[REQUESTS] for _, measured, _ in found for run in measured.runs[OURS])
    finding = Finding(
        "most requests of a checkpoint, however many states", Spread.of([most]), "requests", Goal("P9", 7)
    )
    answer = joined(ROUNDS[size], found)
    return replace(answer, findings=(*answer.findings, finding))


QUESTION = Question("checkpoints", "How long does one checkpoint take?", answer)
