"""Who meets at a savepoint, in the queue of requests, and at a stop. Runs anywhere. As ``scenarios``."""

from __future__ import annotations

from collections.abc import Callable

from airflow_checkpoint_provider.protocol import commands as c
from tests.model import actors as a
from tests.model import savers as s
from tests.model.actors import Try
from tests.model.explore import Disk, Process
from tests.model.scenarios import LOST_OR_LATE, RETIRE, SAVE_A, SAVE_B, Scenario, after, at_work, believed, running

SERVE, PUBLISH, STOP = ("serve",), ("publish",), ("stop",)
SAVED = f"{Process.uri}/savepoint-j-2-saver.0."


def asked(*kinds: str, before: Disk) -> Disk:
    """Requests of somebody from outside, one after the other."""
    savers = {f"saver{i or ''}": (s.saver, kind, f"saved {i}", 0) for i, kind in enumerate(kinds)}
    return after(savers, before=before)


def saved(kind: str = "savepoint", *script: tuple[str, ...]) -> Disk:
    """chk-1, and a savepoint chk-2 of it that is published; then ``script``."""
    before = asked(kind, before=running(SAVE_A))
    return after({"later": at_work(before, SERVE, PUBLISH, *script)}, before=before)


# -- savepoints --------------------------------------------------------------------------------------------------------


def a_savepoint() -> Scenario:
    """Asked for, it is aborted, or its driver replaced, at any moment; two publish besides."""
    disk = asked("savepoint", before=running(SAVE_A))
    cast = {
        "driver": at_work(disk, SERVE, PUBLISH),
        "publisher": (s.publisher, 2),
        "watcher": (a.commander, c.Abort(id=2, reason="expired")),
        "task": (a.task, (Try("A", 2),), believed(disk)),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def a_savepoint_behind_a_checkpoint() -> Scenario:
    """Its driver goes on, and serves it later."""
    disk = asked("savepoint", before=running(SAVE_A))
    cast = {"driver": at_work(disk, SAVE_A, SERVE, PUBLISH), "completer": (a.completer, 2), "cleaner": (a.cleaner, 1)}
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


def a_disposal() -> Scenario:
    """While its own history may go back to it, and a publisher wakes who believes it unpublished."""
    pending = asked("savepoint", before=running(SAVE_A))
    completed = after({"A1": at_work(pending, SERVE)}, before=pending)
    published = after({"p": (s.publisher, 1)}, before=completed)
    two = after({"later": at_work(published, SAVE_A)}, before=published)
    cast = {
        "disposer": (s.disposer, SAVED),
        "sleeper": (s.publisher, 1, believed(completed)),
        "restorer": (a.restorer, 2, 0),
        "cleaner": (a.cleaner, 1),
    }
    return Scenario(cast, two)


def disposals() -> Scenario:
    """Two at once, and answers are lost."""
    two = saved("savepoint", SAVE_A)
    cast = {
        "disposer": (s.disposer, SAVED), "other": (s.disposer, SAVED), "driver": at_work(two, RETIRE),
    }  # fmt: skip
    return Scenario(cast, two, faults=1, kinds=LOST_OR_LATE)


def a_claim() -> Scenario:
    """Another history claims it while its owner disposes of it."""
    two = after({"k": (s.other_task, 1)}, before=saved("savepoint", SAVE_A))
    cast = {"claimer": (s.claimer, SAVED), "disposer": (s.disposer, SAVED)}
    return Scenario(cast, two, faults=1, kinds=LOST_OR_LATE, other=s.OTHER)


def a_claim_under_a_restore() -> Scenario:
    """… while its own history goes back to it, or retires what it does not list any more."""
    two = after({"k": (s.other_task, 1)}, before=saved("savepoint", SAVE_A))
    cast = {"claimer": (s.claimer, SAVED), "restorer": (a.restorer, 2, 0), "driver": at_work(two, RETIRE)}
    return Scenario(cast, two, other=s.OTHER)


def a_savepoint_of_what_was_restored() -> Scenario:
    """An attempt that began at the older one of two takes a savepoint, and nothing else yet, when somebody retires."""
    two = running(SAVE_A, SAVE_B)
    back = after({"restorer": (a.restorer, 1, 0), "task": (a.task, (Try("A", 2),))}, before=two)
    begun = after({"A2": (a.driver, Try("A", 2), ())}, before=back)
    three = asked("savepoint", before=begun)
    cast = {"driver": at_work(three, SERVE, SAVE_A), "cleaner": (a.cleaner, 2)}
    return Scenario(cast, three, faults=1, kinds=LOST_OR_LATE)


def a_savepoint_to_go_on_from() -> Scenario:
    """It is the newest point of a run that starts again while its owner disposes of it."""
    two = saved()
    cast = {
        "task": (a.task, (Try("A", 2),), believed(two)),
        "driver": (a.driver, Try("A", 2), (SAVE_A, RETIRE)),
        "disposer": (s.disposer, SAVED),
    }
    return Scenario(cast, two)


# -- stopping ----------------------------------------------------------------------------------------------------------


def a_stop() -> Scenario:
    """A scheduler is about to start the next try; somebody lifts the suspension."""
    disk = asked("suspend_savepoint", before=running(SAVE_A))
    cast = {
        "driver": at_work(disk, SERVE, PUBLISH, STOP),
        "task": (a.task, (Try("A", 2), Try("A", 3)), believed(disk)),
        "second": (a.driver, Try("A", 2), (SAVE_A,)),
        "restorer": (a.restorer, 2),
    }
    return Scenario(cast, disk)


# -- requests ----------------------------------------------------------------------------------------------------------


def a_queue() -> Scenario:
    """Two wait after one; who asked is gone, and so is, perhaps, who would have served them."""
    disk = asked("checkpoint", "checkpoint", "savepoint", before=running(SAVE_A))
    cast = {
        "driver": at_work(disk, ("go on", "a"), ("go on", "b"), SERVE),
        "task": (a.task, (Try("A", 2),), believed(disk)),
        "watcher": (a.commander, c.Abort(id=2, reason="expired")),
        "saver": (s.saver, "checkpoint", "another"),
    }
    return Scenario(cast, disk, faults=1, kinds=LOST_OR_LATE)


# -- everything --------------------------------------------------------------------------------------------------------


def savings() -> Scenario:
    disk = after({"k": (s.other_task, 1)}, before=saved("savepoint", SAVE_A))
    cast = {
        "zombie": at_work(disk, SERVE, SAVE_A, SERVE, PUBLISH, RETIRE, SAVE_B, STOP, RETIRE),
        "task": (a.task, (Try("A", 2), Try("A", 3))),
        "second": (a.driver, Try("A", 2), (SERVE, SAVE_A, PUBLISH, RETIRE, SERVE, STOP)),
        "third": (a.driver, Try("A", 3), (SAVE_A, SERVE, RETIRE, ("end", "finished"))),
        "saver": (s.saver, "savepoint", "one"),
        "another": (s.saver, "checkpoint", "two", 3),
        "stopper": (s.saver, "suspend_savepoint", "three"),
        "disposer": (s.disposer, SAVED),
        "claimer": (s.claimer, SAVED),
        "publisher": (s.publisher, 3),
        "cleaner": (a.cleaner, 3, True),
        "watcher": (a.commander, c.Abort(id=4, reason="declined"), c.Abort(id=5, reason="expired")),
    }
    return Scenario(cast, disk, faults=3, other=s.OTHER)


SMALL: dict[str, Callable[[], Scenario]] = {
    scenario.__name__: scenario
    for scenario in (
        a_savepoint, a_savepoint_behind_a_checkpoint, a_disposal, disposals, a_claim, a_claim_under_a_restore,
        a_savepoint_of_what_was_restored, a_savepoint_to_go_on_from, a_stop, a_queue,
    )
}  # fmt: skip
LARGE: dict[str, Callable[[], Scenario]] = {savings.__name__: savings}
