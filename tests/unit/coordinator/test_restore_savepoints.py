"""Savepoints as restore points, by pointer or id, at any target. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.restore import examine, resolve
from airflow_checkpoint_provider.coordinator.savepoint_target import put_claim
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged, SavepointDisposed
from airflow_checkpoint_provider.protocol.commands import Condemn, Forget
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import MemoryStore, copy_all
from airflow_checkpoint_provider.text.manual_restore import restored
from tests.support.acknowledgements import acknowledgement, driver, file_set, stage, take
from tests.support.histories import at
from tests.support.journals import KEYS, open_journal
from tests.support.saved import Saved, memory


@pytest.fixture
def saved() -> Saved:
    """Return a savepoint of another history, without its journal."""
    saved = Saved(memory())
    saved.publish()
    return saved


class Own:
    """A history that has completed a savepoint, with its files at the target only."""

    def __init__(self) -> None:
        self.store = memory()
        self.coordinator: Coordinator = driver(self.store)
        number = self.coordinator.trigger(
            Request(token="one", kind="savepoint", origin="task", folder=f"{self.store.uri}")
        )
        checkpoint = self.coordinator.state.checkpoint(number)
        assert checkpoint
        assert checkpoint.target
        self.pointer = SavepointPointer.parse(checkpoint.target)
        made_of = file_set("s1")
        for file in made_of.files:
            self.store.create(f"{self.pointer.keys.file_set(made_of.path)}/{file.name}", b"x" * file.bytes)
        self.coordinator.acknowledge(acknowledgement(number, stage("s1", number, made_of=made_of)))
        self.coordinator.complete(number)
        body = self.store.read(self.coordinator.keys.seal(number))
        assert body
        self.store.create(self.pointer.metadata, body)

    def given_up(self) -> None:
        """Condemn the savepoint, as a disposal or a claim does; its files are still there."""
        take(self.coordinator)
        self.coordinator.journal.append(Condemn(ids=(1,), now=at(3), disposing=True))


# -- resolving pointers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/_metadata"])
def test_foreign_savepoint_resolves_to_a_pointer(saved: Saved, form: str) -> None:
    assert resolve(form.format(saved.pointer), State(), MemoryStore()) == Point(pointer=str(saved.pointer))


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/_metadata"])
def test_own_savepoint_resolves_to_an_id(form: str) -> None:
    own = Own()
    assert resolve(form.format(own.pointer), own.coordinator.state, own.store) == Point(id=1)


def test_copy_of_an_own_savepoint_resolves_to_a_pointer() -> None:
    own, elsewhere = Own(), memory()
    keys = [listed.key for listed in own.store.list(own.pointer.name)]
    copy_all(own.store, elsewhere, [(key, key.replace(own.pointer.name, "moved")) for key in keys])
    point = resolve(f"{elsewhere.uri}/moved", own.coordinator.state, own.store)
    assert point == Point(pointer=f"{elsewhere.uri}/moved")


def test_own_savepoint_is_refused_once_its_disposal_began() -> None:
    """The disposal was killed before it wrote its stub: the files are complete and will be deleted."""
    own = Own()
    own.given_up()
    with pytest.raises(SavepointDisposed, match="being deleted"):
        resolve(str(own.pointer), own.coordinator.state, own.store)


def test_own_savepoint_claimed_by_another_history_resolves_to_a_pointer() -> None:
    own = Own()
    put_claim(own.store, own.pointer, "another 1ncarnation", "who claims", at(3))
    own.given_up()
    own.coordinator.journal.append(Forget(ids=(1,)))
    assert resolve(str(own.pointer), own.coordinator.state, own.store) == Point(pointer=str(own.pointer))


def test_unpublished_savepoint_is_not_found() -> None:
    saved = Saved(memory())
    with pytest.raises(CheckpointNotFound, match="no _metadata"):
        resolve(str(saved.pointer), State(), MemoryStore())


def test_disposed_savepoint_is_refused(saved: Saved) -> None:
    saved.dispose()
    with pytest.raises(SavepointDisposed):
        resolve(str(saved.pointer), State(), MemoryStore())


# -- verified where it lies ----------------------------------------------------------------------------------------------


def test_foreign_savepoint_is_read_at_its_target(saved: Saved) -> None:
    reader = Coordinator(open_journal(MemoryStore()))
    found = examine(reader, reader.state, Point(pointer=str(saved.pointer)), told=str(saved.pointer))
    assert (found.store, found.keys) == (saved.target, saved.pointer.keys)
    assert [(candidate.checkpoint.id, candidate.verdict, candidate.files) for candidate in found.candidates] == [
        (1, "chosen", 2)
    ]
    assert found.id_floor == 1
    lines = "\n".join(restored(reader.state, found))
    assert "verified    a savepoint, 1 state, 38 B, all 2 files there, sizes match" in lines


def test_own_savepoint_is_read_at_its_target() -> None:
    own = Own()
    found = examine(own.coordinator, own.coordinator.state, Point(id=1))
    assert (found.store, found.keys) == (own.store, own.pointer.keys)
    assert found.candidates[0].files == 2
    assert found.id_floor == 0


def test_foreign_savepoint_by_id_is_read_at_its_target() -> None:
    own, reader = Own(), Coordinator(open_journal(MemoryStore()))
    pointer = f"{own.store.uri}/{KEYS.prefix}/chk-1"
    found = examine(reader, reader.state, Point(pointer=pointer), told=pointer)
    assert found.keys == own.pointer.keys
    assert found.id_floor == 1


def test_incomplete_savepoint_is_damaged(saved: Saved) -> None:
    saved.target.delete([f"{saved.pointer.name}/{file_set('s1').path}/part-00000.zstd.parquet"])
    reader = Coordinator(open_journal(MemoryStore()))
    with pytest.raises(Damaged, match="is not whole"):
        examine(reader, reader.state, Point(pointer=str(saved.pointer)), told=str(saved.pointer))
