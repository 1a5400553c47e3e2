"""A root that has two names: through a link, or because it was moved. Its savepoints are known by both. Runs anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator import savepoint
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history
from airflow_checkpoint_provider.coordinator.restore import resolve
from airflow_checkpoint_provider.coordinator.savepoint_target import delete_own
from airflow_checkpoint_provider.errors import AlreadyClaimed, Held, SavepointDisposed
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Token
from airflow_checkpoint_provider.protocol.keys import Keys, SavepointPointer
from airflow_checkpoint_provider.storage import MemoryStore, open_store
from tests.support.acknowledgements import driver, take
from tests.support.garbage import retire
from tests.support.histories import at, launch
from tests.unit.coordinator.savepoints import completed, left, published

NOW, A_YEAR_LATER = at(60), "2027-11-20T00:00:00Z"


class Named:
    """A root whose driver knows it as ``shared``, a link to ``data``, and has published a savepoint in it."""

    def __init__(self, tmp_path: Path) -> None:
        self.data, self.shared = tmp_path / "data", tmp_path / "shared"
        self.data.mkdir()
        self.shared.symlink_to(self.data)
        self.job = driver(open_store(f"{self.shared}/ckp"))
        self.pointer = completed(self.job, f"file://{self.shared}/ckp/savepoints")
        savepoint.publish_due(self.job)

    @property
    def other(self) -> SavepointPointer:
        """The savepoint, by the other name."""
        return SavepointPointer(f"file://{self.data}/ckp/savepoints", self.pointer.name)

    def history(self, root: Path, keys: Keys | None = None) -> Coordinator:
        """Return a history as a process sees it that knows the root by this name."""
        found = open_history(open_store(f"{root}/ckp"), (keys or self.job.keys).prefix)
        found.journal.catch_up()
        return found


@pytest.fixture
def named(tmp_path: Path) -> Named:
    return Named(tmp_path)


def is_linked(named: Named) -> Path:
    return named.shared


def was_linked(named: Named) -> Path:
    """A link was replaced by its target, or another host has a mount of this name."""
    named.shared.unlink()
    return named.data


def dispose(home: Coordinator, pointer: SavepointPointer) -> None:
    savepoint.dispose(home.store, str(pointer), "ann", NOW)


def claim(home: Coordinator, pointer: SavepointPointer) -> None:
    other = open_history(home.store, "jobs/other/job")
    other.journal.append(launch(job="other"))
    savepoint.claim(other, pointer, "ann", NOW)


@pytest.mark.parametrize("act", [dispose, claim])
@pytest.mark.parametrize("root", [is_linked, was_linked])
def test_savepoint_that_its_job_needs_stays(
    named: Named, root: Callable[[Named], Path], act: Callable[[Coordinator, SavepointPointer], None]
) -> None:
    home = named.history(root(named))
    with pytest.raises(Held, match="may still start from savepoint chk-1"):
        act(home, named.other)
    assert left(named.other) == ["_metadata", "state"]


@pytest.mark.parametrize("root", [is_linked, was_linked])
def test_history_forgets_a_savepoint_that_goes_by_the_other_name(named: Named, root: Callable[[Named], Path]) -> None:
    take(named.job)
    home = named.history(root(named))
    dispose(home, named.other)
    assert not home.journal.catch_up().savepoints
    assert left(named.other) == ["_claimed", "_metadata"]


def test_copy_beside_the_savepoint_is_disposed_of_alone(named: Named, tmp_path: Path) -> None:
    copy = SavepointPointer(f"file://{tmp_path}/backup", named.pointer.name)
    shutil.copytree(named.other.root[7:], tmp_path / "backup")
    dispose(named.job, copy)
    assert left(copy) == ["_claimed", "_metadata"]
    assert left(named.pointer) == ["_metadata", "state"]
    assert named.job.journal.catch_up().savepoints


def test_savepoint_and_checkpoint_of_the_history_are_its_own(named: Named) -> None:
    take(named.job)
    state, store = named.job.state, named.job.store
    assert resolve(str(named.other), state, store) == Point(id=1)
    checkpoint = f"file://{named.data}/ckp/{named.job.keys.prefix}/chk-2"
    assert resolve(checkpoint, state, store) == Point(id=2)
    named.job.journal.append(c.Condemn(ids=(1,), now=NOW, disposing=True))
    with pytest.raises(SavepointDisposed, match="being deleted"):
        resolve(str(named.other), named.job.state, store)


def test_savepoint_that_was_removed_is_gone_by_both_names(named: Named) -> None:
    shutil.rmtree(f"{named.other.root[7:]}/{named.other.name}")
    gone = savepoint.find_gone(named.job.store, named.other)
    assert gone
    assert gone.id == 1


def owner(named: Named, root: Path) -> tuple[Coordinator, SavepointPointer]:
    """Return a history that has claimed the savepoint of another one and started from it, and the savepoint."""
    pointer = published(driver(MemoryStore()))
    home = named.history(root)
    savepoint.claim(home, pointer, "ann", NOW)
    return home, pointer


def test_claim_is_its_own_by_both_names(named: Named) -> None:
    home, pointer = owner(named, named.shared)
    other = named.history(named.data)
    savepoint.claim(other, pointer, "ann", NOW)
    store = open_store(pointer.root)
    delete_own(store, pointer, other.folder, "retention", NOW, home.state.incarnation)
    assert left(pointer) == ["_claimed", "_metadata"]


@pytest.mark.parametrize("root", [is_linked, was_linked])
def test_claimed_savepoint_stays_with_its_owner_by_both_names(named: Named, root: Callable[[Named], Path]) -> None:
    """The owner lists the savepoint by the other name: so its restore was not given up."""
    before = driver(MemoryStore())
    pointer = completed(before, f"file://{named.shared}/of-another")
    savepoint.publish_due(before)
    take(before)
    home = named.history(named.data)
    savepoint.claim(home, pointer, "ann", NOW)
    base = Point(pointer=str(pointer))
    token = Token(dag="", run="", task="restore")
    home.journal.append(c.Restore(token=token, base=base, by="ann", reason="", claimed=True))
    assert retire(home, NOW) == ()
    root(named)
    moved = SavepointPointer(f"file://{named.data}/of-another", pointer.name)
    with pytest.raises(AlreadyClaimed):
        savepoint.dispose(home.store, str(moved), "ann", A_YEAR_LATER)
    assert left(moved) == ["_claimed", "_metadata", "state"]
