"""Who meets whom, and on what history. Runs anywhere.

``SMALL`` ones are searched breadth first, ``LARGE`` ones by random schedules. Each of ``bugs`` names the small one that catches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.storage.memory import MemoryStore
from tests.model import actors as a
from tests.model.actors import KEYS, Memory, Try
from tests.model.explore import Disk, Explorer
from tests.model.properties import Properties

Cast = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Scenario:
    actors: Cast
    disk: Disk = field(default_factory=Disk)
    faults: int = 0
    kinds: tuple[str, ...] = ("lost", "late", "twice", "echo")
    segment: int = 64
    seen: bool = False
    other: Keys | None = None  # of the history that claims savepoints

    def explorer(self) -> Explorer:
        return Explorer(
            self.actors,
            Properties(KEYS, self.seen, self.segment, self.other),
            disk=self.disk,
            faults=self.faults,
            kinds=self.kinds,
            segment=self.segment,
        )


# -- histories to begin with -------------------------------------------------------------------------------------------


def after(cast: Cast, segment: int = 64, before: Disk | None = None) -> Disk:
    """What the store holds when these have run one after the other."""
    explorer = Explorer(cast, Properties(KEYS, segment=segment), disk=before, segment=segment)
    world = explorer.start
    for i in range(len(cast)):
        while (i, "now") in explorer.moves(world):
            world, broken = explorer.move(world, i, "now")
            assert not broken, broken
    return explorer.disk(world)


FIRST = Try()
SAVE_A, SAVE_B, RETIRE, RELEASE = ("save", "a"), ("save", "b"), ("retire",), ("release",)
FINISH = ("end", "finished")


def running(*script: tuple[str, ...], mine: Try = FIRST, segment: int = 64, before: Disk | None = None) -> Disk:
    """A launch, its driver at work after ``script``."""
    name = f"{mine.run}{mine.number}"
    return after({f"task-{name}": (a.task, (mine,)), name: (a.driver, mine, script)}, segment, before)


def believed(disk: Disk, segment: int = 64) -> Memory:
    """What somebody believes who has just read."""
    store = MemoryStore()
    store.objects = dict(disk.objects)
    return Memory(Journal(store, KEYS, By("", "", ""), segment=segment).catch_up())


def at_work(disk: Disk, *script: tuple[str, ...], segment: int = 64) -> tuple[Any, ...]:
    """The newest driver of ``disk``, which goes on with ``script``."""
    memory = believed(disk, segment)
    store = MemoryStore()
    store.objects = dict(disk.objects)
    newest = memory.state.retained[-1] if memory.state.retained else None
    seal = Coordinator(Journal(store, KEYS, By("", "", ""))).read_seal(newest) if newest else None
    known = a.words(tuple(seal.states.values()) if seal else ())
    return a.work, script, memory.state.last_epoch, memory, known


# -- journals ----------------------------------------------------------------------------------------------------------


def writers() -> Scenario:
    begun = after({"a": (a.task, (Try("A"),))}, 2)
    memory = believed(begun, 2)
    cast = {"w0": (a.task, (Try("B"),), memory), "w1": (a.task, (Try("C"), Try("D"), Try("E")), memory)}
    return Scenario(cast, begun, faults=1, segment=2)


def writers_from_nothing() -> Scenario:
    cast = {"w0": (a.task, (Try("A"),)), "w1": (a.task, (Try("B"), Try("C"), Try("D")))}
    return Scenario(cast, faults=1, segment=2)


def a_long_sleep() -> Scenario:
    begun = after({"a": (a.task, (Try("A"),))}, 2)
    memory = believed(begun, 2)
    many = tuple(Try(run) for run in "CDEFGH")
    return Scenario({"w0": (a.task, (Try("B"),), memory), "w1": (a.task, many, memory)}, begun, segment=2)


def phantoms() -> Scenario:
    """A sleeper's late put makes an entry that nobody may believe; a reader stands where it appears."""
    begun = after({"a": (a.task, (Try("A"),))}, 3)
    memory = believed(begun, 3)
    cast = {
        "w0": (a.task, (Try("B"),), memory),
        "w1": (a.task, tuple(Try(run) for run in "CDE"), memory),
        "r": (a.reader, 2, memory),
    }
    return Scenario(cast, begun, segment=3)


def phantoms_and_silence() -> Scenario:
    return replace(phantoms(), faults=1, kinds=("lost",))


# -- launches and attempts ---------------------------------------------------------------------------------------------

LOST_OR_LATE = ("lost", "late")


def a_zombie() -> Scenario:
    """The driver of try 1 is alive while try 2 launches and its driver starts."""
    disk = running(SAVE_A)
    cast = {
        "zombie": at_work(disk, SAVE_A, RETIRE),
        "task": (a.task, (Try("A", 2),), believed(disk)),
        "driver": (a.driver, Try("A", 2), (SAVE_A,)),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def another_coordinator() -> Scenario:
    """A task completes what the driver triggered, whenever it looks; the next try launches meanwhile."""
    disk = running(SAVE_A)
    cast = {
        "driver": at_work(disk, SAVE_A),
        "task": (a.task, (Try("A", 2),), believed(disk)),
        "other": (a.completer, 2, believed(disk)),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def a_later_version() -> Scenario:
    """The other coordinator is of another version of the package: its seal is not the same bytes."""
    disk = running(SAVE_A)
    cast = {"driver": at_work(disk, SAVE_A), "other": (a.completer, 2, believed(disk), True)}
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def two_asynchronous_parts() -> Scenario:
    disk = running(SAVE_A, ("begin", "a"))
    cast = {
        "driver": at_work(disk, ("go on", "a"), SAVE_B),
        "twin": (a.twin, 1, believed(disk), 2, "a"),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def a_driver_that_was_ended() -> Scenario:
    """The task believes that the driver is lost; it is not."""
    disk = running(SAVE_A)
    lost = c.EndAttempt(epoch=1, outcome="lost", reported_by="task", from_task=True)
    cast = {"driver": at_work(disk, SAVE_A, SAVE_B), "task": (a.commander, lost)}
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def a_launch_that_ended() -> Scenario:
    """The task saw its driver end and says so, twice; another driver of the launch comes all the same, and the next try."""
    disk = after({"first": (a.task, (Try(),))})
    ended = c.EndLaunch(launch=1, try_number=1, outcome="failed", exit_code=1)
    cast = {
        "task": (a.commander, ended, ended),
        "driver": (a.driver, Try(), (SAVE_A,)),
        "next": (a.task, (Try("A", 2, alive=True), Try("A", 3))),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def drivers_of_one_launch() -> Scenario:
    """A cluster starts the driver again, though the first is alive, and sees that."""
    disk = running(SAVE_A)
    again = Try("A", 1, alive=True)
    cast = {
        "first": at_work(disk, SAVE_A, SAVE_B),
        "second": (a.driver, again, (SAVE_A,)),
        "third": (a.driver, again, ()),
    }
    return Scenario(cast, disk, seen=True)


def a_driver_starts_again() -> Scenario:
    """… or sees that it is not alive: it goes on from what that had completed since the launch."""
    disk = running()
    cast = {"first": at_work(disk, SAVE_A, SAVE_B), "second": (a.driver, Try(), (SAVE_A, RETIRE))}
    return Scenario(cast, disk, faults=1, kinds=("late",))


def tries_of_one_run() -> Scenario:
    disk = running(SAVE_A)
    cast = {
        "second": (a.task, (Try("A", 2, alive=True), Try("A", 4, alive=True))),
        "third": (a.task, (Try("A", 3),)),
        "stop": (a.commander, c.RequestStop(launch=1, try_number=1, by="d.t", reason="killed")),
    }
    return Scenario(cast, disk)


def a_finished_run() -> Scenario:
    """The driver finishes, the worker is lost: the retry has nothing to do."""
    disk = running(SAVE_A)
    return Scenario(
        {"driver": at_work(disk, SAVE_A, FINISH), "task": (a.task, (Try("A", 2), Try("A", 3)))}, disk, faults=1
    )


def a_cleared_run() -> Scenario:
    """A clear adopts the living driver; it finishes, the worker is lost: the clear's own retry has nothing to do."""
    disk = running(SAVE_A)
    tries = (Try("A", 2, 1, alive=True), Try("A", 3, 1, alive=True))
    return Scenario({"driver": at_work(disk, FINISH), "task": (a.task, tries)}, disk)


def two_runs() -> Scenario:
    """Their drivers queue in the cluster, their tasks beat, all three tries of both."""
    tries = {run: tuple(Try(run, number, alive=True) for number in (1, 2)) for run in "AB"}
    return Scenario({run: (a.task, tries[run]) for run in tries}, seen=True)


def asked_from_outside() -> Scenario:
    """A task asks for a checkpoint, its worker is lost, the next try asks again; somebody aborts the first."""
    disk = running(SAVE_A)
    cast = {
        "driver": at_work(disk, SAVE_A, SAVE_B),
        "asker": (a.asker, (1, 1, 2)),
        "watcher": (a.commander, c.Abort(id=2, reason="expired")),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def an_audit() -> Scenario:
    """A gated checkpoint is asked for while the driver works; the next try launches meanwhile."""
    disk = running(SAVE_A)
    cast = {
        "driver": at_work(disk, SAVE_A, SAVE_B),
        "auditor": (a.auditor, True),
        "task": (a.task, (Try("A", 2),), believed(disk)),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def an_audit_that_fails() -> Scenario:
    """… and somebody else finalizes it all the same."""
    disk = running(SAVE_A)
    cast = {
        "driver": at_work(disk, SAVE_A, SAVE_B, RETIRE),
        "auditor": (a.auditor, False),
        "other": (a.auditor, True),
    }
    return Scenario(cast, disk)


def two_scripts() -> Scenario:
    """Without Airflow, started together and once more."""
    begun = after({"first": (a.script, False, (SAVE_A,))})
    cast = {
        "first": at_work(begun, SAVE_A, FINISH),
        "second": (a.script, False, (SAVE_A, RETIRE)),
        "third": (a.script, False, (SAVE_B, FINISH)),
    }
    return Scenario(cast, begun, faults=1, kinds=LOST_OR_LATE)


def a_state_reached_late() -> Scenario:
    """The restore point holds states that the script has not reached when it saves the next one."""
    two = running(SAVE_A, SAVE_B)
    two = after({"task": (a.task, (Try("A", 2),))}, before=two)
    return Scenario({"driver": (a.driver, Try("A", 2), (SAVE_A, SAVE_B))}, two, faults=1)


def two_at_once() -> Scenario:
    """Two pending ones of one attempt, and who completes them in any order."""
    with patch.object(a, "CONFIG", CheckpointConfig(retention=KeepLatest(1), max_concurrent=2).to_json()):
        two = running(SAVE_A, ("leave", "a"), ("leave", "b"))
    return Scenario({"older": (a.completer, 2, believed(two)), "newer": (a.completer, 3, believed(two))}, two)


# -- deleting ----------------------------------------------------------------------------------------------------------


def retiring_under_a_driver() -> Scenario:
    """Attempt 2 outlives its restore point, while it and a task retire."""
    disk = after({"task": (a.task, (Try("A", 2),))}, before=running(SAVE_A))
    cast = {"driver": (a.driver, Try("A", 2), (SAVE_A, RETIRE)), "cleaner": (a.cleaner, 1)}
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def releasing_under_a_successor() -> Scenario:
    """A driver deletes rows that it has computed again, while the next try launches and its driver restores."""
    disk = running(SAVE_A, SAVE_A)
    cast = {
        "driver": at_work(disk, RELEASE, RETIRE, RELEASE, SAVE_A),
        "task": (a.task, (Try("A", 2),), believed(disk)),
        "next": (a.driver, Try("A", 2), (SAVE_A, RETIRE, RELEASE)),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def retiring_under_a_clear() -> Scenario:
    """A finished run is cleared: it starts again from where it started, which is the older one of two."""
    disk = running(SAVE_A, FINISH)
    two = running(SAVE_A, FINISH, mine=Try("B"), before=disk)
    again = Try("B", 2, 1)
    cast = {
        "task": (a.task, (again,), believed(two)),
        "driver": (a.driver, again, (SAVE_A,)),
        "cleaner": (a.cleaner, 2),
    }
    return Scenario(cast, two)


def retiring_under_an_older_clear() -> Scenario:
    """… or cannot, because a later run has begun since and what the older one started from was retired."""
    two = running(SAVE_A, FINISH, mine=Try("B"), before=running(SAVE_A, FINISH))
    three = after({"task": (a.task, (Try("C"),))}, before=two)
    again = Try("B", 2, 1)
    cast = {
        "task": (a.task, (again,), believed(three)),
        "driver": (a.driver, again, (SAVE_A,)),
        "cleaner": (a.cleaner, 2),
    }
    return Scenario(cast, three)


def retiring_under_a_restore() -> Scenario:
    """A run starts from a named checkpoint, which is retired while it makes up its mind."""
    two = running(SAVE_A, SAVE_B, FINISH)
    named = Try("B", 1, restore=1)
    cast = {
        "task": (a.task, (named,), believed(two)),
        "driver": (a.driver, named, (SAVE_A, RETIRE)),
        "cleaner": (a.cleaner, 2),
    }
    return Scenario(cast, two)


def retiring_after_the_end() -> Scenario:
    """A run-scoped history: what ends with the run goes, while the task is cleared."""
    first, again = Try(scope="A"), Try("A", 2, 1, scope="A")
    disk = running(SAVE_A, mine=first)
    cast = {
        "driver": at_work(disk, SAVE_A, FINISH),
        "task": (a.task, (again,)),
        "again": (a.driver, again, (SAVE_A,)),
        "cleaner": (a.cleaner, 2, True),
    }
    return Scenario(cast, disk)


def sweeping_under_a_driver() -> Scenario:
    disk = after({"task": (a.task, (Try("A", 2),))}, before=running(SAVE_A, ("begin", "a")))
    cast = {"driver": (a.driver, Try("A", 2), (SAVE_A, SAVE_B)), "sweeper": (a.cleaner, 2, True)}
    return Scenario(cast, disk)


# -- restoring ---------------------------------------------------------------------------------------------------------


def a_restore() -> Scenario:
    """Back to the older of two, while the driver works on and the next try launches."""
    with patch.object(a, "CONFIG", CheckpointConfig(retention=KeepAll()).to_json()):
        two = running(SAVE_A, SAVE_B)
    cast = {
        "driver": at_work(two, SAVE_A),
        "restorer": (a.restorer, 1),
        "task": (a.task, (Try("A", 2),), believed(two)),
        "second": (a.driver, Try("A", 2), (SAVE_B,)),
    }
    return Scenario(cast, two, faults=1, kinds=LOST_OR_LATE)


def a_restore_that_is_repeated() -> Scenario:
    """Its answer is lost, or its worker."""
    with patch.object(a, "CONFIG", CheckpointConfig(retention=KeepAll()).to_json()):
        two = running(SAVE_A, SAVE_B)
    return Scenario({"driver": at_work(two, SAVE_A), "restorer": (a.restorer, 1)}, two, faults=1, kinds=LOST_OR_LATE)


def a_restore_of_what_is_retired() -> Scenario:
    """The older one goes while it is chosen: either it is refused, or it stays."""
    two = running(SAVE_A, SAVE_B)
    cast = {"restorer": (a.restorer, 1), "cleaner": (a.cleaner, 2), "driver": at_work(two, SAVE_A, RETIRE)}
    return Scenario(cast, two)


# -- closing -----------------------------------------------------------------------------------------------------------

RUN = Try(scope="A")


def closers() -> Scenario:
    """Two close the history of a run that finished, while its task is cleared; one who slept believes a driver that is over."""
    disk = running(FINISH, mine=RUN, segment=4)
    cast = {
        "closer": (a.closer, 2),
        "other": (a.closer, 1, believed(disk, 4)),
        "task": (a.task, (replace(RUN, number=2, generation=1),), believed(disk, 4)),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE, segment=4)


def closers_of_what_was_opened() -> Scenario:
    """… its driver has taken a checkpoint and is about to take more when a closer that slept goes on."""
    disk = running(SAVE_A, FINISH, mine=RUN, segment=4)
    disk = after({"cleaner": (a.cleaner, 1)}, 4, disk)
    again = replace(RUN, number=2, generation=1)
    cast = {
        "closer": (a.closer, 1, believed(disk, 4)),
        "task": (a.task, (again,)),
        "driver": (a.driver, again, (SAVE_A, FINISH)),
        "reader": (a.reader, 1, believed(disk, 4)),
    }
    return Scenario(cast, disk, segment=4)


# -- everything --------------------------------------------------------------------------------------------------------


def everything(segment: int = 64, scope: str = "") -> Scenario:
    tries = [Try("A", number, scope=scope) for number in range(4)]
    disk = running(SAVE_A, mine=tries[1], segment=segment)
    cast = {
        "zombie": at_work(disk, SAVE_A, SAVE_B, RETIRE, SAVE_A, RETIRE, FINISH, segment=segment),
        "task": (a.task, (tries[2], tries[3], replace(tries[3], number=4, generation=1))),
        "second": (a.driver, tries[2], (SAVE_A, RETIRE, SAVE_B, ("begin", "a"), RETIRE)),
        "third": (a.driver, tries[3], (SAVE_A, RETIRE, ("begin", "b"), SAVE_A, FINISH, RETIRE)),
        "fourth": (a.driver, replace(tries[3], number=4, generation=1), (SAVE_B, RETIRE, FINISH)),
        "cleaner": (a.cleaner, 3, True),
        "other": (a.completer, 2, a.NOTHING, True),
        "another": (a.completer, 3),
        "lost": (a.commander, c.EndAttempt(epoch=2, outcome="lost", from_task=True), c.Abort(id=4, reason="expired")),
        "auditor": (a.auditor, True),
        "reader": (a.reader, 3),
        "closer": (a.closer, 3),
    }
    return Scenario(cast, disk, faults=3, segment=segment)


def boundaries() -> Scenario:
    """All of it over small segments, pruned as eagerly as may be."""
    return everything(segment=3)


def run_scope() -> Scenario:
    return everything(scope="A")


SMALL: dict[str, Callable[[], Scenario]] = {
    scenario.__name__: scenario
    for scenario in (
        writers, writers_from_nothing, a_long_sleep, phantoms, phantoms_and_silence,
        a_zombie, another_coordinator, a_later_version, two_asynchronous_parts, two_at_once, asked_from_outside,
        an_audit, an_audit_that_fails,
        a_driver_that_was_ended, a_launch_that_ended, drivers_of_one_launch, a_driver_starts_again, a_state_reached_late,
        tries_of_one_run, a_finished_run, a_cleared_run, two_runs, two_scripts,
        retiring_under_a_driver, releasing_under_a_successor, retiring_under_a_clear, retiring_under_an_older_clear, retiring_under_a_restore,
        retiring_after_the_end, sweeping_under_a_driver, a_restore, a_restore_that_is_repeated,
        a_restore_of_what_is_retired, closers, closers_of_what_was_opened,
    )
}  # fmt: skip
LARGE: dict[str, Callable[[], Scenario]] = {
    scenario.__name__: scenario for scenario in (everything, boundaries, run_scope)
}
