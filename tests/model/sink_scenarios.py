"""Who meets at a target of sinks. Runs anywhere. As ``scenarios``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.storage.memory import MemoryStore
from tests.model import actors as a
from tests.model import publishers as p
from tests.model import targets as t
from tests.model.actors import Step, Try
from tests.model.explore import Disk, Explorer
from tests.model.scenarios import FIRST, LOST_OR_LATE, Cast, after, believed
from tests.model.sink_properties import PublisherRules, TargetRules
from tests.support.targets import MONDAY, TUESDAY, name_of

OF_MONDAY, OF_TUESDAY, ANOTHER, LATER = (name_of(number) for number in (1, 2, 3, 4))


@dataclass(frozen=True)
class AtTarget:
    """``todo`` is what completed checkpoints hold; ``rows`` is what may stand there in the end."""

    actors: Cast
    disk: Disk
    todo: tuple[tuple[bytes, bool], ...] = ()
    rows: tuple[frozenset[str], ...] = ()
    faults: int = 0
    kinds: tuple[str, ...] = LOST_OR_LATE
    bucket: bool = False

    def explorer(self) -> Explorer:
        judge = TargetRules(*self.rows)
        return Explorer(self.actors, judge, disk=self.disk, faults=self.faults, kinds=self.kinds)

    @property
    def last(self) -> tuple[object, ...]:
        return t.settler, self.todo, self.bucket


@dataclass
class Begun:
    """What was there before: runs that have begun, one after the other, and what they have staged."""

    store: MemoryStore = field(default_factory=MemoryStore)

    def run(self, by: RunOfSink, *, overwrite: bool = False) -> PublishedFiles:
        files = PublishedFiles(t.Below(self.store), by, overwrite=overwrite, patience=0)
        files.begin()
        return files

    def staged(self, by: RunOfSink, name: str, row: str, *, overwrite: bool = False) -> bytes:
        return t.given(t.staged(t.Below(self.store), self.run(by, overwrite=overwrite), name, row))

    def committed(self, by: RunOfSink, name: str, row: str) -> bytes:
        made = self.staged(by, name, row)
        self.run(by).commit(t.taken(made))
        return made

    @property
    def disk(self) -> Disk:
        return Disk(dict(self.store.objects), dict(self.store.objects))


def rows(*texts: str) -> frozenset[str]:
    return frozenset(texts)


def two_committers() -> AtTarget:
    """A driver that sleeps and the retry that took its place commit one transaction."""
    begun = Begun()
    monday = begun.staged(MONDAY, OF_MONDAY, "mon")
    cast = {"zombie": (t.committer, monday), "retry": (t.committer, monday)}
    return AtTarget(
        cast, begun.disk, ((monday, False),), (rows("mon"),), faults=1, kinds=("lost", "late", "twice", "echo")
    )


def a_committer_and_an_aborter() -> AtTarget:
    """Somebody believes that it will never be committed."""
    begun = Begun()
    monday = begun.staged(MONDAY, OF_MONDAY, "mon")
    again = replace(MONDAY, generation=1)
    cast = {
        "committer": (t.committer, monday),
        "aborter": (t.aborter, again, (OF_MONDAY,)),
        "other": (t.aborter, TUESDAY, (OF_MONDAY,)),
    }
    return AtTarget(cast, begun.disk, ((monday, False),), (rows("mon"), rows()), faults=1)


def an_overwrite_of_tomorrow() -> AtTarget:
    """Yesterday's driver wakes up, and so does its retry, while a run that begins later overwrites."""
    begun = Begun()
    begun.committed(replace(MONDAY, run="sunday"), ANOTHER, "sun")
    monday = begun.staged(MONDAY, OF_MONDAY, "mon", overwrite=True)
    cast = {
        "zombie": (t.committer, monday, True),
        "retry": (t.committer, monday, True),
        "tuesday": (t.writer, TUESDAY, (OF_TUESDAY, LATER), True),
    }
    return AtTarget(cast, begun.disk, ((monday, True),), (rows("mon"), rows("new")))


def overwrites_and_silence() -> AtTarget:
    """As before, two of them, and an answer is lost."""
    before = an_overwrite_of_tomorrow()
    cast = {name: actor for name, actor in before.actors.items() if name != "retry"}
    return replace(before, actors=cast, faults=1)


def appends_one_after_the_other() -> AtTarget:
    """Each ends the publication of the other before it puts its own entry; somebody reads."""
    begun = Begun()
    monday, tuesday = begun.staged(MONDAY, OF_MONDAY, "mon"), begun.staged(TUESDAY, OF_TUESDAY, "tue")
    cast = {
        "monday": (t.committer, monday),
        "tuesday": (t.committer, tuesday),
        "reader": (t.exact_reader,),
    }
    return AtTarget(cast, begun.disk, ((monday, False), (tuesday, False)), (rows("mon", "tue"),))


def a_run_that_starts_over() -> AtTarget:
    """A cleared task computes all again, and replaces what an earlier pass has committed; the driver of that pass wakes up."""
    begun = Begun()
    monday = begun.staged(MONDAY, OF_MONDAY, "mon")
    again = replace(MONDAY, generation=1)
    cast = {
        "zombie": (t.committer, monday),
        "cleared": (t.writer, again, (ANOTHER, LATER), False, False, OF_MONDAY),
        "tuesday": (t.writer, TUESDAY, (OF_TUESDAY,), False),
    }
    return AtTarget(cast, begun.disk, ((monday, False),))


def a_driver_that_goes_back() -> AtTarget:
    """It takes out what was committed after its checkpoint, while the driver that has committed it wakes up."""
    begun = Begun()
    monday = begun.committed(MONDAY, OF_MONDAY, "mon")
    tuesday = begun.staged(TUESDAY, OF_TUESDAY, "tue")
    cast = {
        "zombie": (t.committer, monday),
        "back": (t.remover, MONDAY, (OF_MONDAY,)),
        "tuesday": (t.committer, tuesday),
    }
    return AtTarget(cast, begun.disk, ((tuesday, False),), (rows("mon", "tue"), rows("tue")))


def in_a_bucket(scenario: AtTarget) -> AtTarget:
    """The same in S3: every actor uploads."""
    places = {t.committer: 3, t.aborter: 3, t.writer: 4, t.exact_reader: 1}

    def there(actor: tuple[object, ...]) -> tuple[object, ...]:
        place = places[actor[0]]  # type: ignore[index]
        filled = (*actor, *(False,) * (place + 1 - len(actor)))
        return (*filled[:place], True, *filled[place + 1 :])

    cast = {name: there(actor) for name, actor in scenario.actors.items()}
    return replace(scenario, actors=cast, bucket=True)


def two_committers_in_a_bucket() -> AtTarget:
    return replace(in_a_bucket(two_committers()), faults=0)


def an_overwrite_of_tomorrow_in_a_bucket() -> AtTarget:
    before = in_a_bucket(an_overwrite_of_tomorrow())
    return replace(before, actors={name: actor for name, actor in before.actors.items() if name != "retry"})


def a_committer_and_an_aborter_in_a_bucket() -> AtTarget:
    """Nobody comes back who knows its name."""
    before = in_a_bucket(a_committer_and_an_aborter())
    actors = {name: actor for name, actor in before.actors.items() if name != "other"}
    return replace(before, actors=actors, todo=())


# -- drivers with a sink -----------------------------------------------------------------------------------------------

OPEN, ONE, TWO, END = ("open",), ("write", "one"), ("write", "two"), ("end",)
SAVE, LEAVE, GATE, AUDIT, COMMIT, CONFIRM = ("save",), ("leave",), ("gate",), ("audit",), ("commit",), ("confirm",)


@dataclass(frozen=True)
class OfDrivers:
    """``script`` is what the job does, undisturbed."""

    actors: Cast
    disk: Disk
    script: tuple[Step, ...]
    rows: tuple[frozenset[str], ...]
    faults: int = 0
    gated: bool = False

    def explorer(self) -> Explorer:
        judge = PublisherRules(*self.rows)
        return Explorer(self.actors, judge, disk=self.disk, faults=self.faults, kinds=LOST_OR_LATE)

    @property
    def last(self) -> tuple[object, ...]:
        return p.rescuer, self.script, self.gated


SHORT = (OPEN, ONE, SAVE, COMMIT, END)


def worked(
    *script: Step, then: tuple[Step, ...] = (), mine: Try = FIRST, gated: bool = False, before: Disk | None = None
) -> tuple[Disk, tuple[Any, ...]]:
    """A launch, its driver at work after ``script``, and how it goes on with ``then``."""
    name = f"{mine.run}{mine.number}"
    cast: Cast = {f"task-{name}": (a.task, (mine,)), name: (p.driver, mine, script + then, gated)}
    explorer = Explorer(cast, PublisherRules(), disk=before)
    world = explorer.start
    for i in range(2):
        while (i, "now") in explorer.moves(world) and not (then and explorer.stands(world, i)[:2] == (p.work, then)):
            world, broken = explorer.move(world, i, "now")
            assert not broken, broken
    return explorer.disk(world), explorer.stands(world, 1)


def a_sink_and_its_retry() -> OfDrivers:
    """The driver of try 1 sleeps with a checkpoint that is completed, or not, while try 2 takes over."""
    disk, zombie = worked(OPEN, ONE, then=(SAVE, COMMIT))
    cast = {
        "zombie": zombie,
        "task": (a.task, (Try("A", 2),), believed(disk)),
        "driver": (p.driver, Try("A", 2), SHORT),
    }
    return OfDrivers(cast, disk, SHORT, (rows("one"),))


def a_checkpoint_that_somebody_completes() -> OfDrivers:
    """… or aborts. The job goes on with another checkpoint, and commits what the journal says."""
    disk, driver = worked(OPEN, ONE, then=(LEAVE, TWO, SAVE, COMMIT, CONFIRM, END))
    cast = {
        "driver": driver,
        "other": (a.completer, 1, believed(disk)),
        "watcher": (a.commander, c.Abort(id=1, reason="expired"), c.Abort(id=2, reason="expired")),
    }
    return OfDrivers(cast, disk, (OPEN, ONE, TWO, SAVE, COMMIT, CONFIRM, END), (rows("one", "two"),), faults=1)


def a_zombie_that_opens_late() -> OfDrivers:
    """It cleans the target up while the rows of its successor are staged there."""
    disk, zombie = worked(then=(OPEN, ONE, SAVE, COMMIT))
    cast = {
        "zombie": zombie,
        "task": (a.task, (Try("A", 2),), believed(disk)),
        "driver": (p.driver, Try("A", 2), SHORT),
    }
    return OfDrivers(cast, disk, SHORT, (rows("one"),))


def an_audit_of_rows() -> OfDrivers:
    """A gated sink: only the audit publishes, whatever else is completed."""
    disk, driver = worked(OPEN, ONE, then=(SAVE, COMMIT, GATE, COMMIT, GATE, COMMIT), gated=True)
    cast = {
        "driver": driver,
        "auditor": (a.auditor, True),
        "task": (a.task, (Try("A", 2),), believed(disk)),
        "retry": (p.driver, Try("A", 2), (OPEN, ONE), True),
    }
    return OfDrivers(cast, disk, (OPEN, ONE, SAVE, AUDIT, COMMIT, END), (rows("one"),), gated=True)


def a_job_that_goes_back() -> OfDrivers:
    """To before the run whose driver sleeps with its commit, which it has begun; the run after it opens the sink."""
    monday, _ = worked(OPEN, ONE, SAVE, COMMIT, CONFIRM, END)
    disk, zombie = worked(OPEN, TWO, SAVE, then=(COMMIT,), mine=Try("B"), before=monday)
    going_back = after({"restorer": (a.restorer, 1, 0, True)}, before=disk)
    third, script = Try("C"), (OPEN, ("write", "three"), SAVE, COMMIT, END)
    cast = {
        "zombie": (t.committer, p.newest(zombie)),
        "task": (a.task, (third,), believed(going_back)),
        "driver": (p.driver, third, script),
    }
    return OfDrivers(cast, going_back, script, (rows("one", "three"),))


PUBLISH, AUDITED = (SAVE, COMMIT, CONFIRM), (AUDIT, COMMIT, CONFIRM)


def back_and_forth(killed: tuple[Step, ...], published: tuple[Step, ...] = PUBLISH, gated: bool = False) -> Disk:
    """A run is killed after some steps; the job goes back to before it, another run publishes, and the job goes to the killed one again."""
    disk, _ = worked(OPEN, ONE, *published, END, gated=gated)
    disk, _ = worked(OPEN, TWO, *killed, then=(END,), mine=Try("B"), gated=gated, before=disk)
    disk = after({"restorer": (a.restorer, 1, 0, True)}, before=disk)
    disk, _ = worked(OPEN, ("write", "three"), *published, END, mine=Try("C"), gated=gated, before=disk)
    return after({"restorer": (a.restorer, 2, 0, True, "again")}, before=disk)


def tried_again(disk: Disk, again: Try) -> OfDrivers:
    """The next try of a run that was killed: it writes the rows of an undisturbed one."""
    script = (OPEN, TWO, *PUBLISH, END)
    cast = {"task": (a.task, (again,), believed(disk)), "driver": (p.driver, again, script)}
    return OfDrivers(cast, disk, script, (rows("one", "two"),), faults=1)


def a_job_that_goes_back_and_forth() -> OfDrivers:
    """What the other run has published is newer than the write of the killed run, which was never committed."""
    return tried_again(back_and_forth((SAVE,)), Try("B", 2))


def rows_that_were_taken_out() -> OfDrivers:
    """The killed run had published its rows. They were taken out when the job went back."""
    return tried_again(back_and_forth(PUBLISH), Try("B", 2))


def a_write_that_a_later_pass_replaced() -> OfDrivers:
    """A retry of another version of the script computed it again. Then the job goes back to the checkpoint of the first one."""
    disk, _ = worked(OPEN, ONE, *PUBLISH, END)
    disk, _ = worked(OPEN, TWO, *PUBLISH, then=(END,), mine=Try("B"), before=disk)
    disk, _ = worked(OPEN, ("write", "wrong"), *PUBLISH, then=(END,), mine=Try("B", 2), before=disk)
    return tried_again(after({"restorer": (a.restorer, 2, 0)}, before=disk), Try("B", 3))


def a_gate_of_another_branch() -> OfDrivers:
    """The write of the killed run was not audited: the gate that the other run has passed publishes nothing of it."""
    disk, again = back_and_forth((SAVE,), AUDITED, gated=True), Try("B", 2)
    cast = {"task": (a.task, (again,), believed(disk)), "driver": (p.driver, again, (OPEN, TWO))}
    return OfDrivers(cast, disk, (OPEN, TWO, *AUDITED, END), (rows("one", "two"),), gated=True)


OF_DRIVERS: dict[str, Callable[[], OfDrivers]] = {
    scenario.__name__: scenario
    for scenario in (
        a_sink_and_its_retry, a_checkpoint_that_somebody_completes, a_zombie_that_opens_late, an_audit_of_rows, a_job_that_goes_back,
        a_job_that_goes_back_and_forth, rows_that_were_taken_out, a_write_that_a_later_pass_replaced,
        a_gate_of_another_branch,
    )
}  # fmt: skip

AT_TARGET: dict[str, Callable[[], AtTarget]] = {
    scenario.__name__: scenario
    for scenario in (
        two_committers, a_committer_and_an_aborter, an_overwrite_of_tomorrow, overwrites_and_silence, appends_one_after_the_other,
        a_run_that_starts_over, a_driver_that_goes_back, two_committers_in_a_bucket, an_overwrite_of_tomorrow_in_a_bucket,
        a_committer_and_an_aborter_in_a_bucket,
    )
}  # fmt: skip
