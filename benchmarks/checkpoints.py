"""How long does one checkpoint take? Beside putting its four objects into the same store. Runs on Linux.

Measured from its trigger until it is completed, as the driver does it, with the real coordinator over the real store. Each
checkpoint has one new state; the others are handed on, as the earlier stages of a job are.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from benchmarks.answers import Answer, Cost, Finding, Goal, Question, Size, Spread
from benchmarks.rounds import Measured, Run, Variant, measure
from benchmarks.stores import STORES
from tests.support.acknowledgements import acknowledgement, driver, stage
from tests.support.faults import FaultyStore
from tests.support.garbage import expire

STATES = (1, 32, 1000)
FACTOR = {1: 1.3, 32: 1.3, 1000: 2.0}  # of four puts, at most
ROUNDS = {Size.TINY: 2, Size.SMALL: 25, Size.FULL: 150}
OURS = "a checkpoint"
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
        expire(self.coordinator)
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


class Puts:
    """Puts the four objects of the last checkpoint of ``job`` again, in the same way and under keys of the same form."""

    def __init__(self, job: Job) -> None:
        self.job, self.keys = job, Keys("raw/flights.delays/job")
        self.numbers = itertools.count(1)

    def put(self) -> Run:
        number = next(self.numbers)
        objects = list(zip(written(self.keys, number, 2 * number), self.job.bodies, strict=True))

        def work() -> None:
            for key, body in objects:
                self.job.store.create(key, body)

        return measured(self.job.store, work)


def written(keys: Keys, number: int, before: int) -> tuple[str, ...]:
    """Return the keys of what checkpoint ``number`` writes behind entry ``before``."""
    return keys.entry(before + 1), keys.acknowledgement(number, ""), keys.seal(number), keys.entry(before + 2)


@contextmanager
def variants(states: int, where: str) -> Iterator[tuple[Variant, Variant]]:
    """Yield the checkpoint and the four puts, in a store of their own. One of each was done before: the connection stands."""
    with STORES[where]() as store:
        job = Job(store, states)
        puts = Puts(job)
        job.checkpoint()
        puts.put()
        yield Variant(ours(states, where), job.checkpoint), Variant(four_puts(states, where), puts.put)


def ours(states: int, where: str) -> str:
    return f"{OURS} with {states:,} {'state' if states == 1 else 'states'}, {where}"


def four_puts(states: int, where: str) -> str:
    return f"four puts of the same objects ({states:,}), {where}"


def answer(size: Size) -> Answer:
    rounds = ROUNDS[size]
    findings: list[Finding] = []
    costs: list[Cost] = []
    loads: list[float] = []
    for where, states in itertools.product(STORES, STATES):
        with variants(states, where) as pair:
            found = measure(pair, rounds)
        findings += compared(found, states, where)
        costs += found.costs()
        loads += found.loads
    requests = Spread.of(cost.figures[REQUESTS] for cost in costs if cost.variant.startswith(OURS))
    findings.append(Finding("requests of a checkpoint, however many states", requests, "requests", Goal("P9", 7)))
    return Answer(rounds, Spread.of(loads), tuple(findings), tuple(costs))


def compared(found: Measured, states: int, where: str) -> list[Finding]:
    name = ours(states, where)
    ratio = found.ratio(name, four_puts(states, where))
    seconds = Finding(f"{name}: trigger until completed", found.seconds(name), "s", known=FLINK if states == 1 else "")
    return [Finding(f"{name}: beside four puts", ratio, goal=Goal("P5", FACTOR[states])), seconds]


QUESTION = Question("checkpoints", "How long does one checkpoint take?", answer)
