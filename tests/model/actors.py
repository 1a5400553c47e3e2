"""The actors of the models: each does with the real journal and coordinator what its namesake in the package does. Runs anywhere.

An actor remembers from one stretch to the next the state that it believes and, a driver, the states that it would acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.closing import close
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By, Entry
from airflow_checkpoint_provider.coordinator.files import export_pairs, import_state
from airflow_checkpoint_provider.coordinator.journal import Answer, Journal
from airflow_checkpoint_provider.coordinator.restore import Restored, examine
from airflow_checkpoint_provider.coordinator.savepoint import publish_due, target_of
from airflow_checkpoint_provider.errors import (
    AlreadyFinished,
    Busy,
    CheckpointError,
    CheckpointNotFound,
    CommitStateUnknown,
    Damaged,
    Fenced,
    NotRunning,
    Refused,
    StoreError,
    Superseded,
)
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point, Request, Token
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import Keys, file_set_path
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, StateSnapshot
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.requests import ungated
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.file_sets import FileSets
from airflow_checkpoint_provider.storage.base import Put, put
from tests.model.explore import TRIES_TWICE, Asked, Next, Process


@dataclass(frozen=True, eq=False)
class Memory:
    """The state that an actor believed when it began to forget its answers."""

    state: State

    def __hash__(self) -> int:
        return self.state.n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memory) and self.state == other.state


NOTHING = Memory(State())
KEYS = Keys("jobs/j/job")
AT = "2026-01-01T00:00:00.000Z"
CONFIG = CheckpointConfig(retention=KeepLatest(1)).to_json()
ROWS = b"rows"


def now() -> str:
    return AT


@dataclass(frozen=True)
class Try:
    """One try of the task of a run, as Airflow numbers it. Runs come after each other by the letters of their names."""

    run: str = "A"
    number: int = 1
    generation: int = 0
    alive: bool = False  # what it sees of the launch that stands, or its driver of the driver before
    restore: int | None = None
    scope: str = ""

    @property
    def token(self) -> Token:
        return Token(dag="d", run=self.run, task="t", generation=self.generation)

    @property
    def words(self) -> tuple[str, str, str, int, int]:
        return "d", self.run, "t", self.generation, self.number

    @property
    def text(self) -> bytes:
        """What the journal holds once this try is planned."""
        return canonical({"token": self.token.to_json(), "try_number": self.number})[1:-1]

    def plan(self) -> c.PlanLaunch:
        return c.PlanLaunch(
            spec=LaunchSpec(
                token=self.token,
                try_number=self.number,
                owner="d.t",
                run=self.run,
                run_after=f"2026-01-01T{ord(self.run) - 64:02d}:00:00.000Z",
                started_at=AT,
                restore="latest" if self.restore is None else str(self.restore),
            ),
            incarnation="inc",
            job="j",
            scope=self.scope,
            seen_alive=self.alive,
            base=None if self.restore is None else Point(id=self.restore),
        )

    def start(self, driver: str) -> c.StartAttempt:
        return c.StartAttempt(
            token=self.token, try_number=self.number, driver=driver, seen_alive=self.alive, checkpointing=CONFIG
        )


class Watched(Journal):
    """The journal, saying what it believes; of another history, silently."""

    def __init__(self, process: Process, memory: Memory = NOTHING, epoch: int | None = None, keys: Keys = KEYS) -> None:
        super().__init__(
            process, keys, By(process.name, "d.t", "h", epoch), segment=process.segment, patience=TRIES_TWICE,
            nonce=process.nonce, clock=now,
        )  # fmt: skip
        self._process = process
        if memory.state.n >= 0:
            self.state, self._incarnation, self._believed = memory.state, memory.state.incarnation, True

    def catch_up(self) -> State:
        with self._saying():
            return super().catch_up()

    def append(self, command: c.Command | Callable[[State], c.Command]) -> Answer:
        with self._saying():
            return super().append(command)

    @contextmanager
    def _saying(self) -> Iterator[None]:
        try:
            yield
        except Asked:
            raise
        except BaseException:
            self._say()
            raise
        self._say()

    def _say(self) -> None:
        if self.keys == KEYS:
            self._process.says("believes", self.state)


# -- tasks -------------------------------------------------------------------------------------------------------------


def task(process: Process, tries: tuple[Try, ...], memory: Memory = NOTHING, asked: bool = False) -> Next | None:
    """Each try in turn plans its launch, asks once more where the answer was lost, and prunes after itself."""
    journal, mine = Watched(process, memory), tries[0]
    try:
        journal.append(mine.plan())
        process.says("planned", mine.words)
    except CommitStateUnknown:
        if not asked:
            return Next(task, tries, NOTHING, True)
    except (Superseded, AlreadyFinished):
        pass  # it may have been planned, and replaced or driven to its end since
    except Refused:
        process.says_for_good("not planned", mine.words)
    except StoreError:
        if not asked:
            process.says_for_good("not planned", mine.words)
    with suppress(StoreError):
        prune(process, journal.state)
    return Next(task, tries[1:], Memory(journal.state)) if tries[1:] else None


def prune(process: Process, state: State) -> None:
    """As PROTOCOL section 2 allows it, and as early: whoever believes a boundary deletes the segment before it and makes a
    stub of the boundary before that. The package itself keeps a segment more."""
    edge = state.n
    if edge > 0 and edge % process.segment == 0:
        before = edge - process.segment
        process.delete(KEYS.entry(number) for number in range(before + 1, edge))
        shorten(process, before, state)


def shorten(process: Process, boundary: int, state: State) -> None:
    """Overwrite an old boundary by its stub: its number stays taken."""
    names = {"job": state.job, "scope": state.scope} if boundary == 0 else {}
    stub = Entry(inc=state.incarnation, n=boundary, nonce="", at="", by={}, events=(), stub=True, extra=names)
    process.overwrite(KEYS.entry(boundary), stub.to_bytes())


# -- drivers -----------------------------------------------------------------------------------------------------------

Step = tuple[str, ...]


def driver(process: Process, mine: Try, script: tuple[Step, ...], again: bool = True) -> Next | None:
    """Submitted once its launch is planned: verify the restore point, take an epoch, work."""
    process.waits_for(mine.text)
    journal = Watched(process)
    try:
        state = journal.catch_up()
        restored = examine(Coordinator(journal), state, state.restore_point())
        journal.append(mine.start(process.name))
        record = next(attempt for attempt in journal.state.attempts if attempt.driver == process.name)
        process.says("started", record.epoch, process.name)
        if record.restore_point != restored.point:  # it moved since it was verified
            restored = examine(Coordinator(journal), journal.state, record.restore_point)
        states = taken_in(process, restored, record.epoch)
    except StoreError:
        return Next(driver, mine, script, False) if again else None
    return Next(work, script, record.epoch, Memory(journal.state), words(states))


def taken_in(process: Process, restored: Restored, epoch: int) -> tuple[StateSnapshot, ...]:
    """The states of the restore point. References never leave a history: what lies elsewhere is copied."""
    if restored.seal is None or restored.keys is None:
        return ()
    states = tuple(restored.seal.states.values())
    if restored.keys == KEYS:
        return states
    copies = [
        import_state(state, restored.keys, KEYS, epoch, lambda: process.nonce().replace(".", "-")) for state in states
    ]
    for _, pairs in copies:
        for _, there in pairs:
            process.overwrite(there, ROWS)
    return tuple(copied for copied, _ in copies)


def words(states: tuple[StateSnapshot, ...]) -> bytes:
    """The states that a driver would acknowledge now, as bytes."""
    return Acknowledgement(inc="", id=1, application="", epoch=1, nonce="", run="", states=states).to_bytes()


def work(
    process: Process, script: tuple[Step, ...], epoch: int, memory: Memory, known: bytes, again: int = 2
) -> Next | None:
    """Take the steps of ``STEPS`` in turn; one whose answer was lost is taken again. ``known`` are the states of the restore
    point and those saved since."""
    if not script:
        return None
    journal = Watched(process, memory, epoch)
    at_work = AtWork(process, Coordinator(journal, epoch), epoch, f"{process.name}-{len(script)}", known)
    (step, *what), rest = script[0], script[1:]
    try:
        known = STEPS[step](at_work, *what)
    except Fenced:
        return None
    except Refused:
        pass  # aborted by somebody: the job goes on
    except StoreError:
        if not again:
            return None
        rest, again = script, again - 1
    return Next(work, rest, epoch, Memory(journal.state), known, again)


@dataclass(frozen=True)
class AtWork:
    """A driver at one step of its script. Each step returns the states that the driver knows afterwards."""

    process: Process
    coordinator: Coordinator
    epoch: int
    request: str
    known: bytes

    def save(self, uid: str) -> bytes:
        """A whole checkpoint: triggered, acknowledged, completed."""
        number = self._trigger()
        self._pass_gates(uid)
        known = self._acknowledge(number, uid)
        completed(self.process, self.coordinator, number)
        return known

    def begin(self, uid: str) -> bytes:
        """Triggered, and the rows are there."""
        self._write(uid, self._trigger())
        return self.known

    def leave(self, uid: str) -> bytes:
        """One that somebody asked for, acknowledged; anyone may complete it."""
        return self._acknowledge(
            self.coordinator.trigger(Request(token=self.request, origin="task", timeout_s=600)), uid
        )

    def go_on(self, uid: str) -> bytes:
        """Acknowledge and complete what is pending."""
        known = self.known
        for pending in ungated(self.coordinator.state):
            known = self._acknowledge(pending.id, uid)
            completed(self.process, self.coordinator, pending.id)
        return known

    def serve(self) -> bytes:
        """The savepoints that wait, each with files of its own."""
        states = Acknowledgement.from_bytes(self.known).states
        for checkpoint in self.coordinator.journal.catch_up().pending:
            if checkpoint.savepoint:
                for _, there in export_pairs(states, KEYS, target_of(checkpoint).keys):
                    self.process.overwrite(there, ROWS)
                self.coordinator.acknowledge(self._word(checkpoint.id, states))
                completed(self.process, self.coordinator, checkpoint.id)
        return self.known

    def publish(self) -> bytes:
        publish_due(self.coordinator)
        return self.known

    def stop(self) -> bytes:
        """End, if one of them has suspended the job."""
        return self.end("suspended") if self.coordinator.state.suspended else self.known

    def retire(self) -> bytes:
        garbage.retire(garbage.unshared(self.coordinator), AT)
        return self.known

    def release(self) -> bytes:
        """Delete what neither a checkpoint nor this attempt needs, unless one is pending. The script reads no rows any more."""
        state = self.coordinator.state
        attempt, paths = state.attempt(self.epoch), state.paths()
        if state.pending or attempt is None:
            return self.known
        own = {file_set_path("a", self.epoch, str(number)) for number in range(1, state.next_id)}
        file_sets = FileSets(own | {paths[number] for number in attempt.held_file_sets if number in paths})
        file_sets.mark_unneeded(state, Acknowledgement.from_bytes(self.known).states)
        for path in file_sets.unneeded():
            self.process.says_for_good("released", self.epoch, path)
        garbage.delete_folders(self.process, KEYS, file_sets.unneeded(), garbage.unchecked)
        return self.known

    def end(self, how: str) -> bytes:
        self.coordinator.journal.append(c.EndAttempt(epoch=self.epoch, outcome=how))
        return self.known

    def _trigger(self) -> int:
        """A barrier serves what waits for it, else it triggers a checkpoint of its own."""
        waiting = ungated(self.coordinator.journal.catch_up())
        try:
            number = waiting[0].id if waiting else self.coordinator.trigger(Request(token=self.request, timeout_s=600))
        except Busy:  # asked from outside since we looked
            return ungated(self.coordinator.state)[0].id
        except Refused:
            self.process.says_for_good("not triggered", self.request)
            raise
        if not waiting:
            self.process.says("triggered", self.request, number)
        return number

    def _pass_gates(self, uid: str) -> None:
        """With the states of this barrier; which of them were acknowledged before is forgotten: a duplicate changes nothing."""
        for checkpoint in self.coordinator.state.pending:
            if checkpoint.request.gated:
                self._acknowledge(checkpoint.id, uid)

    def _write(self, uid: str, number: int) -> FileSet:
        """A file set of one file, verified before it is acknowledged."""
        path = file_set_path(uid, self.epoch, str(number))
        if put(self.process, f"{KEYS.file_set(path)}/part-0", ROWS, patience=TRIES_TWICE)[0] is Put.UNKNOWN:
            raise StoreError("the rows are not there")
        return FileSet(path=path, files=(File(name="part-0", bytes=len(ROWS), rows=1),))

    def _acknowledge(self, number: int, uid: str) -> bytes:
        """The driver goes on with the states of the acknowledgement that stands."""
        snapshot = StateSnapshot(uid=uid, kind="stage", run="A", file_sets=(self._write(uid, number),))
        states = handed_on(Acknowledgement.from_bytes(self.known).states, snapshot)
        return words(self.coordinator.acknowledge(self._word(number, states)).states)

    def _word(self, number: int, states: tuple[StateSnapshot, ...]) -> Acknowledgement:
        return Acknowledgement(
            inc="inc", id=number, application="", epoch=self.epoch, nonce=self.process.nonce(), run="A", states=states
        )


STEPS: dict[str, Callable[..., bytes]] = {
    "save": AtWork.save, "begin": AtWork.begin, "leave": AtWork.leave, "go on": AtWork.go_on,
    "serve": AtWork.serve, "publish": AtWork.publish, "stop": AtWork.stop, "retire": AtWork.retire, "end": AtWork.end,
    "release": AtWork.release,
}  # fmt: skip


def handed_on(before: tuple[StateSnapshot, ...], snapshot: StateSnapshot) -> tuple[StateSnapshot, ...]:
    """All states of the restore point, and the new one."""
    return tuple(sorted((*(known for known in before if known.uid != snapshot.uid), snapshot), key=lambda one: one.uid))


def twin(process: Process, epoch: int, memory: Memory, number: int, uid: str) -> None:
    """A second asynchronous part of one checkpoint, with rows of its own."""
    path = file_set_path(uid, epoch, "twin")
    put(process, f"{KEYS.file_set(path)}/part-0", ROWS, patience=TRIES_TWICE)
    file_set = FileSet(path=path, files=(File(name="part-0", bytes=len(ROWS), rows=1),))
    states = (StateSnapshot(uid=uid, kind="stage", run="A", file_sets=(file_set,)),)
    ack = Acknowledgement(
        inc="inc", id=number, application="", epoch=epoch, nonce=process.nonce(), run="A", states=states
    )
    Coordinator(Watched(process, memory, epoch), epoch).acknowledge(ack)


# -- everybody else ----------------------------------------------------------------------------------------------------


def reader(process: Process, times: int, memory: Memory = NOTHING) -> Next | None:
    """Catches up again and again."""
    journal = Watched(process, memory)
    with suppress(StoreError):
        journal.catch_up()
    return Next(reader, times - 1, Memory(journal.state)) if times > 1 else None


def completer(
    process: Process, number: int, memory: Memory = NOTHING, later: bool = False, times: int = 2
) -> Next | None:
    """Anyone who sees that a checkpoint is due; ``later`` is of another version of the package, whose seal says more."""
    journal = Watched(process, memory)
    with suppress(CheckpointError):
        completed(process, (Later if later else Coordinator)(journal), number)
        return None
    return Next(completer, number, Memory(journal.state), later, times - 1) if times > 1 else None


def completed(process: Process, coordinator: Coordinator, number: int) -> None:
    coordinator.complete(number)
    process.says("completed", number)


class Later(Coordinator):
    """The coordinator of a later version of the package."""

    def _seal(self, checkpoint: Checkpoint, acks: dict[str, Acknowledgement]) -> Seal:
        return replace(super()._seal(checkpoint, acks), extra={"later": 1})


def asker(process: Process, tries: tuple[int, ...], again: int = 2) -> Next | None:
    """A task that asks for a checkpoint until it gets one; each of its tries asks for the same."""
    journal = Watched(process)
    try:
        number = Coordinator(journal).trigger(Request(token="asked", try_number=tries[0], timeout_s=600))
        process.says("triggered", "asked", number)
    except (Busy, NotRunning, StoreError):
        if again:
            return Next(asker, tries, again - 1)
    return Next(asker, tries[1:], again) if tries[1:] else None


def auditor(process: Process, passes: bool, again: int = 3) -> Next | None:
    """Asks for a gated checkpoint, looks at it as soon as that can be done, then finalizes or aborts it."""
    journal = Watched(process)
    coordinator = Coordinator(journal)
    later = Next(auditor, passes, again - 1) if again else None
    try:
        number = coordinator.trigger(Request(token="audit", gated=True))
        process.says("triggered", "audit", number)
        checkpoint = journal.catch_up().checkpoint(number)
        if checkpoint is None:  # it has its outcome, and is not listed any more
            return None
        coordinator.contents(checkpoint)
        if passes:
            coordinator.complete(number, finalize=True)
        else:
            coordinator.abort(number, "audit failed", phase="gate")
    except (Refused, CheckpointNotFound, StoreError):
        return later
    process.says("completed" if passes else "aborted", number)
    return None


def script(process: Process, alive: bool, steps: tuple[Step, ...], again: bool = True) -> Next | None:
    """A driver without Airflow: it plans its launch and takes its epoch in one entry."""
    journal = Watched(process)

    def start(state: State) -> c.Command:
        newest = state.runs[-1] if state.runs else None
        launch = state.launch(newest.launch) if newest else None
        going = newest is not None and newest.outcome != "finished"
        run = newest.key if newest and going else chr(65 + len(state.runs))
        mine = Try(run, launch.latest_try + 1 if launch and going else 1, alive=alive)
        return c.StartAlone(plan=replace(mine.plan(), alone=True), start=mine.start(process.name))

    try:
        journal.append(start)
    except StoreError:
        return Next(script, alive, steps, False) if again else None
    record = next(attempt for attempt in journal.state.attempts if attempt.driver == process.name)
    process.says("started", record.epoch, process.name)
    restored = examine(Coordinator(journal), journal.state, record.restore_point)
    states = taken_in(process, restored, record.epoch)
    return Next(work, steps, record.epoch, Memory(journal.state), words(states))


def commander(process: Process, *commands: c.Command) -> None:
    """One who sends these commands, whatever comes of each."""
    journal = Watched(process)
    for command in commands:
        with suppress(CheckpointError):
            journal.append(command)


def restorer(
    process: Process, number: int, again: int = 2, rewinds_sink: bool = False, named: str = "restore"
) -> Next | None:
    """A person or a task that goes back on purpose; asked again, it is one restore."""
    journal = Watched(process)
    base = Point(id=number)
    token = Token(dag="d", run="A", task=named)
    try:
        state = journal.catch_up()
        examine(Coordinator(journal), state, base)
        journal.append(c.Restore(token=token, base=base, by="d.restore", reason="restore", rewind_sink=rewinds_sink))
        process.says("restored", number)
    except (Refused, Damaged):
        return None
    except StoreError:
        return Next(restorer, number, again - 1, rewinds_sink, named) if again else None
    return Next(restorer, number, 0, rewinds_sink, named) if again else None


def cleaner(process: Process, times: int = 1, sweeps: bool = False) -> Next | None:
    """A task that retires what nothing holds, and perhaps sweeps."""
    journal = Watched(process)
    coordinator = Coordinator(journal)
    with suppress(StoreError):
        journal.catch_up()
        garbage.retire(garbage.unshared(coordinator), AT)
        if sweeps:
            garbage.remove_orphans(garbage.unshared(coordinator))
    return Next(cleaner, times - 1, sweeps) if times > 1 else None


def closer(process: Process, times: int, memory: Memory = NOTHING) -> Next | None:
    """Closes the history as soon as that can be done."""
    journal = Watched(process, memory)
    with suppress(Refused, StoreError):
        close(Coordinator(journal), c.CloseHistory(reason="the run finished", now=now()))
    return Next(closer, times - 1, Memory(journal.state)) if times > 1 else None


def rescuer(process: Process) -> Next | None:
    """Alone in the end: the next try of the newest run, or a clear of it if it finished; then its driver to the end."""
    journal = Watched(process)
    state = journal.catch_up()
    run = state.runs[-1] if state.runs else None
    launch = state.launch(run.launch) if run else None
    if state.suspended:
        token = Token(dag="d", run="", task="rescue", generation=state.n)
        journal.append(c.Restore(token=token, base=state.restore_point(), by="d.rescue", reason="go on"))
    mine = Try(scope=state.scope)
    if run and launch:
        mine = replace(mine, run=run.key, number=launch.latest_try + 10, generation=run.generation)
    try:
        journal.append(mine.plan())
    except AlreadyFinished:
        mine = replace(mine, generation=mine.generation + 1)
        journal.append(mine.plan())
    return Next(_rescue, driver, mine, (("save", "a"), ("serve",), ("publish",), ("retire",), ("end", "finished")))


def _rescue(process: Process, actor: Callable[..., Next | None], *arguments: object) -> Next:
    following = actor(process, *arguments)
    if following is None:
        return Next(cleaner, 1, True)
    return Next(_rescue, following.function, *following.arguments)
