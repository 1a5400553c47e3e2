"""Journals and directories that somebody planted: no savepoint's target leads to data of anybody else. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator import savepoint
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL, ClaimLock, delete_savepoint, put_claim
from airflow_checkpoint_provider.errors import AlreadyClaimed, Damaged, InvalidName, NotItsClaim, StoreMisconfigured
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.checkpoint_records import Claim
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, Store, open_store
from tests.support.acknowledgements import bystander, driver, take
from tests.support.garbage import remove_orphans, retire
from tests.support.histories import at, launch
from tests.support.journals import KEYS, open_journal
from tests.support.planted import STUB, append, planted
from tests.support.saved import memory
from tests.unit.coordinator.savepoints import left, published


def content(pointer: SavepointPointer) -> dict[str, bytes]:
    store = open_store(pointer.root)
    assert isinstance(store, MemoryStore)
    return dict(store.objects)


# -- a journal that names a directory of somebody else -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["warehouse", "warehouse/part-0", "savepoint-orders-7-9f3c", "savepoint-orders-1-other", "jobs/orders/job"]
)
def test_journal_that_names_another_directory_is_damaged(name: str) -> None:
    """Whoever could delete there would first have to read the entry."""
    store = MemoryStore()
    journal = driver(store).journal
    n = journal.catch_up().n + 1
    entry = journal.entry(n - 1)
    assert entry
    store.objects[KEYS.entry(n)] = replace(entry, n=n, events=(planted(f"memory://team-b/{name}", "9f3c"),)).to_bytes()
    with pytest.raises(Damaged, match=rf"{n:016d}.*team-b/{name}' is not a directory of savepoint 1"):
        open_journal(store).catch_up()


def condemned(coordinator: Coordinator) -> None:
    append(
        coordinator,
        e.CheckpointCompleted(id=1, digest="d", metadata_bytes=9, bytes=0, states=()),
        e.CheckpointsCondemned(ids=(1,)),
    )


def aborted(coordinator: Coordinator) -> None:
    append(coordinator, e.CheckpointAborted(id=1, reason="expired", phase="acknowledge"))


@pytest.mark.parametrize("end", [condemned, aborted])
def test_savepoint_of_another_job_survives_a_journal_that_names_it(end: Callable[[Coordinator], None]) -> None:
    """The id and the nonce of a savepoint stand in its name, so that a journal can lie about it."""
    victim = published(driver(MemoryStore()))
    before = content(victim)
    thief = driver(MemoryStore())
    append(thief, planted(str(victim), victim.name.rpartition("-")[2]))
    end(thief)
    retire(thief, at(1))
    remove_orphans(thief)
    assert content(victim) == before


def test_savepoint_without_a_directory_is_damaged() -> None:
    thief = driver(MemoryStore())
    append(thief, replace(planted("memory://team-b/savepoint-orders-1-9f3c", "9f3c"), target=None))
    append(thief, e.CheckpointCompleted(id=1, digest="d", metadata_bytes=9, bytes=0, states=()))
    with pytest.raises(Damaged, match="savepoint chk-1 without its directory"):
        savepoint.publish_due(thief)


@pytest.mark.parametrize("name", ["savepoint-team-b.job-1-9f3c", "savepoint-flights.delays-b-1-9f3c"])
def test_savepoint_of_another_job_that_is_being_copied_survives_a_journal_that_names_it(name: str) -> None:
    """It has no ``_metadata`` yet, as what an aborted savepoint left."""
    theirs = memory()
    theirs.create(f"{name}/state/s1/1-a/part-0", b"rows")
    store = MemoryStore()
    journal = driver(store).journal
    assert journal._put_next((planted(f"{theirs.uri}/{name}", "9f3c"),))
    assert journal._put_next((e.CheckpointAborted(id=1, reason="expired", phase="acknowledge"),))
    with pytest.raises(
        Damaged, match=rf"lists memory://.*/{name} as chk-1, which would be savepoint-flights.delays-1-9f3c"
    ):
        remove_orphans(bystander(store))
    assert list(theirs.objects)


def owning(root: str, pointer: SavepointPointer, incarnation: str = "thief") -> Coordinator:
    """Return a history below ``root`` whose journal says that it owns a savepoint and deletes it now."""
    journal = (thief := driver(open_store(root))).journal
    claims = (Claim(pointer=str(pointer), at=at(1), status="condemned"),)
    journal.state = replace(journal.state, claims=claims, incarnation=incarnation)
    return thief


def sweep(thief: Coordinator) -> None:
    """Sweep as a task does. The savepoint stays, one line says so, and the history does not name it again."""
    with pytest.raises(NotItsClaim, match=r"stays: memory://.* checkpoints dispose 'memory://"):
        retire(thief, at(1))
    retire(thief, at(1))
    assert thief.state.claims == ()


def test_claim_that_stands_only_in_a_journal_deletes_nothing() -> None:
    victim = published(driver(MemoryStore()))
    before = content(victim)
    sweep(owning("memory://thief-1", victim))
    assert content(victim) == before


def test_journal_with_the_incarnation_of_the_owner_deletes_nothing() -> None:
    """The incarnation of a history stands in each of its entries, for everybody who reads one."""
    owner = driver(open_store("memory://owner"))
    victim = published(driver(MemoryStore()))
    savepoint.claim(owner, victim, "ann", at(1))
    before = content(victim)
    sweep(owning("memory://thief-2", victim, incarnation=owner.state.incarnation))
    assert content(victim) == before


def test_journal_that_owns_a_savepoint_outside_of_the_roots_reads_nothing_there() -> None:
    victim = published(driver(MemoryStore()))
    thief = owning("memory://thief-3", victim)
    thief.journal.store = open_store("memory://thief-3", savepoint_roots=[])
    before = content(victim)
    with pytest.raises(StoreMisconfigured, match="is not a place for savepoints"):
        retire(thief, at(1))
    assert content(victim) == before


@pytest.mark.parametrize("pointer", ["x", "", "../a/b", "s3://lake/a\n/b"])
def test_claim_of_what_is_no_pointer_is_damaged(pointer: str) -> None:
    with pytest.raises(Damaged, match="pointer"):
        Claim.from_json({"pointer": pointer, "at": at(1), "status": "condemned"})


def test_savepoint_whose_owner_does_not_exist_any_more_is_disposed_of_by_a_person() -> None:
    """The root was copied: the histories of the copy are other owners, and say ``dispose``."""
    before = MemoryStore("before")
    victim = published(driver(MemoryStore()))
    savepoint.claim(owner := driver(before), victim, "ann", at(1))
    with pytest.raises(
        AlreadyClaimed, match=r"memory://before/jobs/flights.delays/job does not exist any more, write --root"
    ):
        savepoint.dispose(MemoryStore("after"), str(victim), "ann", at(2))
    with pytest.raises(AlreadyClaimed):
        savepoint.dispose(before, str(victim), "ann", at(2))
    before.delete([listed.key for listed in before.list(owner.keys.prefix)])
    savepoint.dispose(before, str(victim), "ann", at(2), dry_run=True)
    assert left(victim) == ["_claimed", "_metadata", "state"]
    savepoint.dispose(before, str(victim), "ann", at(2))
    assert left(victim) == ["_claimed", "_metadata"]


# -- a stub where there is more than a savepoint -------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> LocalStore:
    """A history with one checkpoint, and a stub in its directory."""
    store = LocalStore(str(tmp_path))
    take(driver(store))
    store.create(f"{KEYS.prefix}/_metadata", STUB)
    return store


def keys_in(store: Store) -> list[str]:
    return [listed.key for listed in store.list("")]


@pytest.mark.parametrize("dry_run", [True, False])
def test_dispose_of_a_history_with_a_stub_is_refused(history: LocalStore, dry_run: bool) -> None:
    before = keys_in(history)
    with pytest.raises(InvalidName, match="is a history of a job"):
        savepoint.dispose(history, f"{history.uri}/{KEYS.prefix}", "ann", at(1), dry_run=dry_run)
    assert keys_in(history) == before


def test_dispose_of_the_copy_of_a_history_with_a_stub_is_refused(history: LocalStore) -> None:
    """A copy may lie anywhere; its journal shows what it is."""
    backup = MemoryStore()
    for key in keys_in(history):
        backup.create(key.replace(KEYS.prefix, "backup"), history.read(key) or b"")
    before = dict(backup.objects)
    with pytest.raises(InvalidName, match="is a history of a job"):
        delete_savepoint(backup, SavepointPointer(backup.uri, "backup"), DISPOSAL, "ann", at(1))
    assert backup.objects == before


def moved_into_a_history(pointer: SavepointPointer, lake: Path) -> str:
    """Copy a savepoint to a place that looks like a history, and return its new directory."""
    place, source = LocalStore(str(lake)), open_store(pointer.root)
    for listed in source.list(pointer.name):
        key = listed.key.replace(pointer.name, "jobs/etl/job/mine")
        place.create(key, source.read(listed.key) or b"")
    return f"{place.uri}/jobs/etl/job/mine"


def test_savepoint_inside_of_a_history_cannot_be_claimed(tmp_path: Path) -> None:
    where = moved_into_a_history(published(driver(MemoryStore())), tmp_path)
    with pytest.raises(InvalidName, match="lies inside of one, and no savepoint"):
        savepoint.claim(driver(MemoryStore()), SavepointPointer.parse(where), "ann", at(1))


def test_claim_that_cannot_be_deleted_is_forgotten_and_delays_no_other_deletion(tmp_path: Path) -> None:
    where = moved_into_a_history(published(driver(MemoryStore())), tmp_path)
    (tmp_path / "jobs/etl/job/mine/_claimed").write_text("{}")
    coordinator = driver(MemoryStore())
    append(
        coordinator,
        e.BranchOpened(
            branch=1,
            application="",
            base=e.Point(pointer=where),
            token=e.Token(dag="d", run="r", task="t"),
            by="ann",
            reason="claim",
            claimed=True,
        ),
        e.CheckpointsCondemned(ids=(), claims=(where,)),
    )
    collector = bystander(coordinator.store)
    with pytest.raises(NotItsClaim, match=r"cannot be read|is not"):
        retire(collector, at(1))
    assert collector.journal.catch_up().claims == ()
    assert (tmp_path / "jobs/etl/job/mine/_metadata").exists()


def test_disposal_deletes_only_the_files_of_the_savepoint() -> None:
    """Somebody may have copied a stub into a directory with other data."""
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    store = open_store(pointer.root)
    store.create(f"{pointer.name}/warehouse/part-0", b"rows")
    store.create(f"{pointer.name}/notes.txt", b"mine")
    savepoint.dispose(coordinator.store, str(pointer), "ann", at(1))
    assert left(pointer) == ["_claimed", "_metadata", "notes.txt", "warehouse"]


def test_interrupted_disposal_is_finished_without_a_question() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    put_claim(open_store(pointer.root), pointer, DISPOSAL, "bob", at(1))
    open_store(pointer.root).overwrite(pointer.metadata, STUB)
    savepoint.dispose(coordinator.store, str(pointer), "ann", at(1))
    assert left(pointer) == ["_claimed", "_metadata"]


@pytest.mark.parametrize("there", [False, True], ids=["no history", "another history"])
def test_owner_that_another_host_may_have_keeps_its_savepoint(tmp_path: Path, there: bool) -> None:
    """Each host may have a folder of this name. So nothing in it, or another history, does not say that the owner is gone."""
    root = tmp_path / "checkpoints"
    victim = published(driver(MemoryStore()))
    savepoint.claim(driver(LocalStore(str(root))), victim, "ann", at(1))
    root.rename(tmp_path / "on another host")
    if there:
        launched = open_history(LocalStore(str(root)), "jobs/flights.delays/job", By("task", "t", "h"))
        launched.journal.append(launch(incarnation="another 1ncarnation"))
    with pytest.raises(AlreadyClaimed, match=f"owns this savepoint since {at(1)}, by ann, and is not on this host"):
        savepoint.dispose(LocalStore(str(root)), str(victim), "ann", at(9))
    assert left(victim) == ["_claimed", "_metadata", "state"]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("where", ["savepoint-orders-1-9f3c", "spark-location"])
def test_stub_alone_deletes_nothing(tmp_path: Path, where: str, dry_run: bool) -> None:
    """A ``checkpointLocation`` of Spark has a folder ``state``, too."""
    target = LocalStore(str(tmp_path))
    target.create(f"{where}/_metadata", STUB)
    target.create(f"{where}/state/0/0/1.delta", b"rows")
    with pytest.raises(Damaged, match="but no _claimed, which each disposal writes first"):
        savepoint.dispose(MemoryStore(), f"{target.uri}/{where}", "ann", at(1), dry_run=dry_run)
    assert sorted(listed.key for listed in target.list(where)) == [f"{where}/_metadata", f"{where}/state/0/0/1.delta"]


@pytest.mark.parametrize(("owner", "error"), [("file:///root/jobs/etl/job", AlreadyClaimed), (None, Damaged)])
def test_stub_beside_another_claim_deletes_nothing(owner: str | None, error: type[Exception]) -> None:
    """That of a history, or one that cannot be read."""
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    store = open_store(pointer.root)
    store.overwrite(pointer.metadata, STUB)
    store.overwrite(
        pointer.claim, b"{" if owner is None else canonical(ClaimLock(owner=owner, by="x", at=at(1)).to_json())
    )
    before = content(pointer)
    with pytest.raises(error):
        savepoint.dispose(coordinator.store, str(pointer), "ann", at(1))
    assert content(pointer) == before


def test_condemned_savepoint_whose_directory_is_gone_is_forgotten() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    open_store(pointer.root).delete_under(pointer.name)
    coordinator.journal.append(c.Condemn(ids=(1,), now=at(1), disposing=True))
    assert retire(coordinator, at(1)) == (1,)
    assert left(pointer) == []
