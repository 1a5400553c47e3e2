"""Instances of a mapped task over a list that changes: who may run an item, where it goes on, and what nobody computes twice.

The journal, the registrations, the launches and the decisions are real. Airflow and the drivers are acted.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.indexes import Indexes, Registration
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats, Process
from airflow_checkpoint_provider.errors import AlreadyFinished, Fenced, HistoryGone, OneItemTwice, Refused, Superseded
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.operators._launched import EarlierHistory, LaunchParameters
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request, Token
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.storage import MemoryStore, Store
from airflow_checkpoint_provider.storage.base import Listed
from tests.support.acknowledgements import acknowledgement, value
from tests.support.recorded import at

RUN = "manual__1"
JOB = "load_tables.load"
BEATS = Beats(every=0.05, wait=0.2, still=0.2)
DEAD = replace(Process.this(), pid=2**22 + 1)  # greater than any process of Linux
KEEPS_ALL = CheckpointConfig(retention=KeepAll()).to_json()


@dataclass
class Instance:
    """Airflow's record of one map index. ``item`` is that of its newest try."""

    state: str | None = None
    try_number: int = 0
    generation: int = 1
    item: str = ""
    launch: DriverLaunch | None = None


class Driver:
    """The driver of one launch of an item. ``alive`` says whether its process lives."""

    def __init__(self, store: Store, launch: DriverLaunch, computed: Counter[str]) -> None:
        self.item, self.computed, self.alive = str(launch.parameters.history.item), computed, True
        self.coordinator = Coordinator(Journal(store, launch.keys, By("driver", "driver", "here")))
        self.coordinator.journal.catch_up()
        assert launch.record
        spec = launch.record.spec
        start = c.StartAttempt(
            token=spec.token, try_number=spec.try_number, driver=f"{id(self)}", checkpointing=KEEPS_ALL
        )
        self.coordinator.journal.append(start)
        self.coordinator.epoch = self.coordinator.state.last_epoch
        self._beat(Process.this())

    def _beat(self, process: Process) -> None:
        key = self.coordinator.keys.attempt_beat(self.coordinator.epoch or 0)
        heart = Heart(self.coordinator.store, key, Beat(epoch=self.coordinator.epoch, counter=random.randrange(9**9)))
        heart.update(lambda beat: replace(beat, process=process))
        heart.pulse()

    def works(self) -> None:
        """Compute the item, unless its restore point holds it, and take a checkpoint."""
        state = self.coordinator.journal.catch_up()
        attempt = state.attempt(self.coordinator.epoch)
        assert attempt
        point = state.checkpoint(attempt.restore_point.id) if attempt.restore_point else None
        if point or attempt.first_completed:
            held = self.coordinator.read_seal(point).states["item"].value if point else self.item
            assert held == self.item, "an item continues another item's history"
            return
        self.computed[self.item] += 1
        number = self.coordinator.trigger(Request(token=f"barrier of {self.coordinator.epoch}"))
        made = value("item", number, self.item)
        inc = self.coordinator.state.incarnation
        self.coordinator.acknowledge(acknowledgement(number, made, epoch=self.coordinator.epoch or 0, inc=inc, run=RUN))
        self.coordinator.complete(number)

    def dies(self) -> None:
        self.alive = False
        self._beat(DEAD)

    def ends(self) -> None:
        self.alive = False
        assert self.coordinator.epoch
        self.coordinator.end_attempt(c.EndAttempt(epoch=self.coordinator.epoch, outcome="finished", exit_code=0))


@dataclass
class World:
    """A mapped task in one DAG run, the list it is mapped over, and its drivers."""

    items: list[str]
    on_clear: str = "auto"
    store: MemoryStore = field(default_factory=MemoryStore)
    instances: list[Instance] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    computed: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.instances = [Instance() for _ in self.items]

    # -- Airflow -----------------------------------------------------------------------------------------------------

    def begin(self, index: int) -> None:
        """Begin a try of an instance: it renders its item, and plans."""
        instance = self.instances[index]
        instance.state, instance.item, instance.try_number = "running", self.items[index], instance.try_number + 1
        instance.launch = launch = self._launch(index)
        try:
            launch.plan()
        except AlreadyFinished:
            instance.state = "success"
        except Superseded:
            instance.state = "failed"
        except Refused as error:
            self.refused.append(error.message)
            instance.state = "up_for_retry"
        else:
            if not launch.adopted:
                self.drivers.append(Driver(self.store, launch, self.computed))

    def _launch(self, index: int) -> DriverLaunch:
        instance = self.instances[index]
        token = Token(
            dag="load_tables", run=RUN, task="load", item=instance.item, generation=100 * index + instance.generation
        )
        parameters = LaunchParameters(
            history=History(JOB, RUN, instance.item),
            token=token,
            try_number=instance.try_number,
            run_after=None,
            now=at("03:02:10"),
            on_clear=self.on_clear,
            map_index=index,
        )
        return DriverLaunch(self.store, parameters, lambda _: None, BEATS, index_state=self.state_of)

    def state_of(self, index: int) -> str | None:
        return self.instances[index].state if index < len(self.instances) else None

    def follow(self, index: int) -> None:
        """Let the process of an instance look at its driver, as it does each second."""
        instance = self.instances[index]
        assert instance.launch
        try:
            instance.launch.raise_if_replaced()
        except Superseded:
            instance.state = "failed"
            return
        except Fenced:
            instance.state = "up_for_retry"
            return
        attempt = instance.launch.attempt()
        if attempt and attempt.outcome == "finished":
            instance.state = "success"
        elif not any(driver.alive for driver in self.drivers_of(instance.item)):
            instance.launch.record_end("lost", None)
            instance.state = "up_for_retry"

    def lose(self, index: int) -> None:
        """Lose the worker of an instance. Its driver goes on."""
        self.instances[index].state = "up_for_retry"

    def change(self, items: list[str]) -> None:
        """Change the list between two tries. Nothing is cleared: a literal list in an edited file."""
        self.items = items
        self.instances += [Instance() for _ in items[len(self.instances) :]]
        for instance in self.instances[len(items) :]:
            instance.state = "removed"

    def clear(self) -> None:
        """Clear all instances. Airflow first ends those that run; their drivers are asked to stop, and end."""
        for instance in self.instances[: len(self.items)]:
            if instance.state == "running" and instance.launch:
                for driver in self.drivers_of(instance.item):
                    driver.dies()
            instance.state, instance.generation = None, instance.generation + 1

    def drivers_of(self, item: str) -> list[Driver]:
        return [driver for driver in self.drivers if driver.item == item and driver.alive]

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        for item in set(self.items):
            living = [
                driver
                for driver in self.drivers_of(item)
                if not driver.coordinator.state.over(driver.coordinator.epoch or 0)
            ]
            assert len(living) <= 1, f"two drivers of item {item}"

    def settle(self) -> None:
        """Let everything run to its end, without further accidents."""
        for _ in range(100):
            for index, instance in enumerate(self.instances[: len(self.items)]):
                if instance.state in (None, "up_for_retry"):
                    self.begin(index)
                for driver in self.drivers_of(instance.item):
                    driver.works()
                    driver.ends()
                if instance.state == "running":
                    self.follow(index)
            if all(instance.state == "success" for instance in self.instances[: len(self.items)]):
                return
        raise AssertionError(f"{[(i.item, i.state) for i in self.instances]}, {self.refused[-3:]}")


TABLES = [f"table {number}" for number in range(6)]


def act(world: World, draw: random.Random) -> None:
    index = draw.randrange(len(world.items))
    instance = world.instances[index]
    living = [driver for driver in world.drivers if driver.alive]
    choice = draw.random()
    if instance.state in (None, "up_for_retry"):
        world.begin(index)
    elif living and choice < 0.5:
        draw.choice(living).works()
    elif living and choice < 0.65:
        draw.choice(living).dies()
    elif living and choice < 0.75:
        driver = draw.choice(living)
        driver.works()
        driver.ends()
    elif instance.state == "running":
        (world.lose if choice < 0.85 else world.follow)(index)


@pytest.mark.parametrize("seed", range(12))
def test_list_that_is_reordered_and_lengthened_between_tries(seed: int) -> None:
    """Items move to other indexes. Each is computed once, by one driver at a time, and none is left out."""
    draw = random.Random(seed)
    world = World(TABLES, on_clear="continue")
    for phase in range(3):
        for _ in range(25):
            act(world, draw)
            world.check()
        longer = [*world.items, f"new {phase}"]
        draw.shuffle(longer)
        world.change(longer)
        world.clear()
    world.settle()
    assert world.computed == dict.fromkeys(world.items, 1)


@pytest.mark.parametrize("seed", range(6))
def test_list_that_is_edited_while_all_wait_for_a_retry(seed: int) -> None:
    """Nothing is cleared. As long as no instance has succeeded, every item finds an index."""
    draw = random.Random(seed)
    world = World(TABLES)
    for index in range(len(TABLES)):
        world.begin(index)
    for driver in list(world.drivers):
        driver.works()
        if draw.random() < 0.7:
            driver.dies()
    for index in range(len(TABLES)):
        world.lose(index)
    longer = ["new", *draw.sample(TABLES, len(TABLES))]
    world.change(longer)
    world.settle()
    assert world.computed == dict.fromkeys(longer, 1)


def test_shorter_list_leaves_items_that_move_to_an_index_before_them() -> None:
    world = World(["dropped", "orders", "payments"])
    for index in range(3):
        world.begin(index)
    for driver in list(world.drivers):
        driver.works()
        driver.dies()
    for index in range(3):
        world.lose(index)
    world.change(["orders", "payments"])
    world.settle()
    assert world.computed == {"dropped": 1, "orders": 1, "payments": 1}


# -- two instances with one item -----------------------------------------------------------------------------------------


def test_item_that_stands_twice_in_the_list_is_run_by_one_instance() -> None:
    world = World(["orders", "orders"])
    world.begin(0)
    world.begin(1)
    assert [instance.state for instance in world.instances] == ["running", "up_for_retry"]
    assert "map index 0 has this item, and map index 1 is asked to run it, too" in world.refused[0]
    world.drivers[0].works()
    world.drivers[0].ends()
    world.follow(0)
    world.begin(1)
    assert (len(world.refused), len(world.drivers)) == (2, 1)


def test_item_of_an_instance_that_has_succeeded_and_was_not_cleared_is_refused() -> None:
    """The list was edited, and only another instance was cleared: it would take the place of one that is done."""
    world = World(["orders", "payments"])
    for index in range(2):
        world.begin(index)
        world.drivers[index].works()
        world.drivers[index].ends()
        world.follow(index)
    world.items = ["orders", "orders"]
    world.instances[1].state = None
    world.instances[1].generation += 1
    world.begin(1)
    assert "map index 0 has this item" in world.refused[0]


def test_item_goes_on_as_soon_as_the_other_index_has_begun_with_another_item() -> None:
    """Also if Airflow cannot be asked about that index."""
    world = World(["orders", "payments"])
    world.begin(0)
    world.drivers[0].works()
    world.drivers[0].dies()
    world.lose(0)
    world.items = ["payments", "orders"]
    world.state_of = lambda index: "running"  # type: ignore[method-assign]
    world.begin(1)
    assert "map index 0 has this item" in world.refused[0]
    world.begin(0)
    world.begin(1)
    assert len(world.refused) == 1
    assert world.drivers[-1].item == "orders"


@pytest.mark.parametrize("state", [None, _airflow.DELETED])
def test_item_of_an_index_that_airflow_does_not_run_moves(state: str | None) -> None:
    """It was cleared, or deleted."""
    world = World(["orders", "payments"])
    world.begin(0)
    world.drivers[0].dies()
    world.lose(0)
    world.items = ["payments", "orders"]
    world.state_of = lambda index: state  # type: ignore[method-assign]
    world.begin(1)
    assert (world.refused, world.drivers[-1].item) == ([], "orders")


def test_instance_that_cannot_ask_airflow_is_refused_for_now() -> None:
    def raises(_: int) -> str | None:
        raise OSError("no answer")

    world = World(["orders", "payments"])
    world.begin(0)
    world.items = ["payments", "orders"]
    world.state_of = raises  # type: ignore[method-assign,assignment]
    world.begin(1)
    assert (
        "map index 0 was registered with item 'orders', and Airflow does not say whether it still has it"
        in world.refused[0]
    )
    assert "OSError: no answer" in world.refused[0]


def test_finished_item_whose_index_was_only_retried_is_not_computed_again() -> None:
    """Its worker was lost after the end of its driver, and the list was edited meanwhile. A clear would start it again."""
    world = World(["orders", "payments"])
    world.begin(0)
    world.drivers[0].works()
    world.drivers[0].ends()
    world.lose(0)
    world.change(["stock", "orders"])
    world.begin(0)
    world.begin(1)
    assert (world.instances[1].state, world.computed["orders"]) == ("success", 1)


def test_finished_item_whose_index_was_cleared_starts_again() -> None:
    world = World(["orders", "payments"])
    world.settle()
    world.change(["stock", "orders", "payments"])
    world.clear()
    world.settle()
    assert world.computed == {"orders": 2, "payments": 2, "stock": 1}


def test_two_instances_that_ask_at_the_same_time_are_put_in_order() -> None:
    """Both have registered before one plans. The second plan sees the first, and is refused."""
    world = World(["orders", "orders"])
    for index in (0, 1):
        token = Token(dag="load_tables", run=RUN, task="load")
        registered = Registration(item="orders", generation=1, at=at("03:02:10"))
        Indexes(world.store, History(JOB, RUN), token).register(index, 1, registered)
    world.begin(1)
    world.begin(0)
    assert [instance.state for instance in world.instances] == ["up_for_retry", "running"]


def test_earlier_try_that_wakes_up_with_its_old_item_ends() -> None:
    world = World(["orders", "payments"])
    world.begin(0)
    world.drivers[0].dies()
    late = world.instances[0].launch
    assert late
    world.lose(0)
    world.change(["stock", "orders"])
    world.begin(0)
    with pytest.raises(Superseded, match="try 2 of map index 0 has begun"):
        DriverLaunch(world.store, late.parameters, lambda _: None, BEATS, index_state=world.state_of).plan()
    world.begin(1)
    with pytest.raises(Superseded):
        late.raise_if_replaced()


def test_try_that_was_deferred_keeps_its_item() -> None:
    """It is resumed with the item that the list has by then."""
    world = World(["orders", "payments"])
    world.begin(0)
    launch = world.instances[0].launch
    assert launch
    changed = replace(
        launch.parameters,
        history=History(JOB, RUN, "payments"),
        token=replace(launch.parameters.token, item="payments"),
    )
    with pytest.raises(OneItemTwice, match="began try 1 with item 'orders', and has item 'payments' now"):
        DriverLaunch(world.store, changed, lambda _: None, BEATS, index_state=world.state_of).resume()


# -- other refusals --------------------------------------------------------------------------------------------------------


def test_history_of_an_item_that_is_gone_is_named_with_its_index() -> None:
    world = World(["orders"])
    world.begin(0)
    launch = world.instances[0].launch
    assert launch
    parameters = replace(launch.parameters, try_number=2, earlier=EarlierHistory("another one"))
    with pytest.raises(HistoryGone) as error:
        DriverLaunch(world.store, parameters, lambda _: None, BEATS).plan()
    assert "/taskInstances/load/state-store/checkpoint_history.orders?map_index=0`" in str(error.value)
    assert launch.title == f"{JOB}, item orders, run {RUN}"


def test_one_of_ten_instances_cleans_up() -> None:
    class Counting(MemoryStore):
        listed = 0

        def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
            self.listed += prefix == f"jobs/{JOB}/runs"
            return super().list(prefix, after)

    store = Counting("counted")
    world = World([f"table {number}" for number in range(21)], store=store)
    for index in range(21):
        world.instances[index].item = world.items[index]
        world._launch(index).collect_older_runs(threading.Event())
    assert store.listed == 3
