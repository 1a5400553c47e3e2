"""The actors who meet at a savepoint: who asks for one, publishes, disposes of, or claims it. Runs anywhere.

Targets lie in the one store there is, beside the histories: ``in_one_store``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from unittest import mock

from airflow_checkpoint_provider.coordinator import coordinator, garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.savepoint import claim, dispose, publish_due
from airflow_checkpoint_provider.errors import Busy, CheckpointNotFound, Refused, StoreError
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import Keys, SavepointPointer, file_set_path
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, StateSnapshot
from airflow_checkpoint_provider.storage.base import Store
from tests.model.actors import AT, NOTHING, ROWS, Memory, Try, Watched
from tests.model.explore import Next, Process

OTHER = Keys("jobs/k/job")
"""The history that claims savepoints of the first one."""


@contextmanager
def in_one_store() -> Iterator[None]:
    def opened(store: Store, keys: Keys, by: By) -> Watched:
        assert isinstance(store, Process)
        return Watched(store, keys=keys)

    with mock.patch.object(coordinator, "Journal", opened):
        yield


def saver(process: Process, kind: str, request: str = "saved", again: int = 1) -> Next | None:
    """A task that asks for one of that kind; it may have to wait for its turn."""
    journal = Watched(process)
    target = Process.uri if kind.endswith("savepoint") else None
    try:
        number = Coordinator(journal).trigger(
            Request(token=request, origin="task", kind=kind, folder=target, timeout_s=600, owner="d.save")
        )
        process.says("triggered", request, number)
    except (Busy, StoreError):
        return Next(saver, kind, request, again - 1) if again else None
    except Refused:
        return None
    return None


def publisher(process: Process, times: int, memory: Memory = NOTHING) -> Next | None:
    """Anyone who sees that one is completed and not said to be published; perhaps long ago."""
    journal = Watched(process, memory)
    with suppress(StoreError):
        if memory.state.n < 0:
            journal.catch_up()
        publish_due(Coordinator(journal))
    return Next(publisher, times - 1, Memory(journal.state)) if times > 1 else None


def disposer(process: Process, pointer: str, again: int = 1) -> Next | None:
    """Its owner, who does it again where the answer was lost."""
    try:
        dispose(process, pointer, "d.dispose", AT)
    except (Refused, CheckpointNotFound):
        return None
    except StoreError:
        return Next(disposer, pointer, again - 1) if again else None
    return None


def other_task(process: Process, number: int) -> None:
    """A launch of the other history."""
    Watched(process, keys=OTHER).append(other_plan(number))


def other_plan(number: int) -> c.PlanLaunch:
    return replace(Try(number=number).plan(), job="k", incarnation="other")


def claimer(process: Process, pointer: str, again: int = 1) -> Next | None:
    """The other history goes on from a savepoint of the first one, which is its own from then on."""
    journal = Watched(process, keys=OTHER)
    token = Token(dag="d", run="A", task="restore")
    try:
        journal.catch_up()
        found = claim(Coordinator(journal), SavepointPointer.parse(pointer), "d.restore", AT)
        restore = c.Restore(
            token=token,
            base=Point(pointer=pointer),
            by="d.restore",
            reason="restore",
            id_floor=found.seal.id,
            claimed=True,
        )
        journal.append(restore)
    except (Refused, CheckpointNotFound):
        return None
    except StoreError:
        return Next(claimer, pointer, again - 1) if again else None
    return Next(stranger, 2, (2, 3))


def stranger(process: Process, number: int, saves: tuple[int, ...]) -> Next | None:
    """A run of the other history: a checkpoint of its own, and what the policy then wants no more goes."""
    journal = Watched(process, keys=OTHER)
    with suppress(StoreError):
        journal.append(other_plan(number))
        journal.append(Try(number=number).start(process.name))
        coordinator = Coordinator(journal, journal.state.last_epoch)
        saved = coordinator.trigger(Request(token=f"own {saves[0]}", timeout_s=600))
        garbage.retire(garbage.unshared(coordinator), AT)
        coordinator.acknowledge(_own(process, coordinator, saved))
        coordinator.complete(saved)
        garbage.retire(garbage.unshared(coordinator), AT)
    return Next(stranger, number + 1, saves[1:]) if saves[1:] else None


def _own(process: Process, coordinator: Coordinator, number: int) -> Acknowledgement:
    epoch = coordinator.epoch or 0
    path = file_set_path("a", epoch, str(number))
    process.overwrite(f"{OTHER.file_set(path)}/part-0", ROWS)
    file_set = FileSet(path=path, files=(File(name="part-0", bytes=len(ROWS), rows=1),))
    states = (StateSnapshot(uid="a", kind="stage", run="A", file_sets=(file_set,)),)
    return Acknowledgement(
        inc="other", id=number, application="", epoch=epoch, nonce=process.nonce(), run="A", states=states
    )
