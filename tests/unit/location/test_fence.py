"""The fence of a query's location: no batch begins there later. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import CommitStateUnknown, Damaged, Fenced
from airflow_checkpoint_provider.location.fence import (
    FenceEntry,
    delete_location,
    fence,
    fence_entry_in,
    newest_batch,
    not_deleted,
)
from airflow_checkpoint_provider.location.files import OFFSETS, UNREADABLE, Location
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, Store
from airflow_checkpoint_provider.storage.base import Listed
from tests.support.faults import Call, Fault, FaultyStore, Killed, SlowFolder

KEY = "jobs/orders/job/query/rows/1-abc"
MINE = FenceEntry("1ncarnation", "rows", "nonce", "attempt 2 of orders")
OTHER = FenceEntry("1ncarnation", "rows", "other", "attempt 3 of orders")


def location(store: Store, batches: int) -> Location:
    """Return a location in which so many batches have begun."""
    for batch in range(batches):
        store.create(f"{KEY}/offsets/{batch}", b"v1\n{}\n-")
    return Location(store, KEY)


def nobody_fenced() -> None:
    """Let this process go on."""


@pytest.mark.parametrize("batches", [0, 1, 12])
def test_fence_takes_the_number_of_the_next_batch(batches: int, tmp_path: Path) -> None:
    for store in (MemoryStore(), LocalStore(tmp_path / "root")):
        old = location(store, batches)
        assert fence(old, MINE, nobody_fenced) == batches - 1
        body = store.read(old.key_of(f"offsets/{batches}"))
        assert fence_entry_in(body)
        assert body is not None
        assert body.startswith(UNREADABLE)
        assert newest_batch(old) == (batches - 1, True)


def test_batch_that_a_listing_lacks_is_no_gap() -> None:
    old = location(store := SlowFolder(), 5)
    store.missed, store.looks = old.key_of("offsets/3"), 1
    assert newest_batch(old) == (4, False)
    assert store.looks == 0


def test_batch_that_is_missing_is_an_error() -> None:
    old = location(MemoryStore(), 5)
    old.store.delete([old.key_of("offsets/3")])
    with pytest.raises(Damaged, match="follows 2"):
        newest_batch(old)


def test_second_process_takes_the_fence_of_the_first() -> None:
    old = location(MemoryStore(), 3)
    assert (fence(old, MINE, nobody_fenced), fence(old, OTHER, nobody_fenced)) == (2, 2)
    assert old.store.read(old.key_of("offsets/3")) == MINE.to_bytes()


class Busy(MemoryStore):
    """A store in which a zombie acts at one moment: before the call of this kind."""

    def __init__(self, act: Callable[[Busy], object], moment: str) -> None:
        super().__init__()
        self._act, self._moment = act, moment

    def _before(self, moment: str) -> None:
        if moment == self._moment:
            self._moment = ""
            self._act(self)

    def create(self, key: str, body: bytes) -> object:  # type: ignore[override]
        self._before("create")
        return super().create(key, body)

    def hidden(self, prefix: str) -> object:  # type: ignore[override]
        self._before("hidden")
        found = list(super().hidden(prefix))
        self._before("after hidden")
        return iter(found)


def busy(act: Callable[[Busy], object], moment: str, batches: int = 3) -> Location:
    store = Busy(act, moment)
    for batch in range(batches):
        store.objects[f"{KEY}/offsets/{batch}"] = b"v1\n{}\n-"
    return Location(store, KEY)  # type: ignore[arg-type]


def begin(batch: int) -> Callable[[Busy], object]:
    """Return what Spark does to begin a batch: it replaces what is there."""
    return lambda store: store.objects.update({f"{KEY}/offsets/{batch}": b"v1\n{}\n-"})


def test_fence_stands_after_a_batch_that_was_faster() -> None:
    assert fence(busy(begin(3), "create"), MINE, nobody_fenced) == 3


def test_fence_that_a_late_rename_has_replaced_is_put_again() -> None:
    """A zombie had looked before the fence came, and renames after that."""
    old = busy(begin(3), "hidden")
    assert fence(old, MINE, nobody_fenced) == 3
    assert fence_entry_in(old.store.read(old.key_of("offsets/4")))


def went_on_and_was_purged(store: Busy) -> None:
    """Do what Spark does while a process that fences sleeps: it begins batches 3 to 9, and deletes all but the newest two."""
    for batch in range(3, 10):
        begin(batch)(store)
    store.delete([f"{KEY}/offsets/{batch}" for batch in range(8)])


def test_process_that_slept_while_the_log_was_purged_past_it_fences_again() -> None:
    """Its number is free again, so its fence stands, after nothing. The batches went on."""
    old = busy(went_on_and_was_purged, "create")
    assert fence(old, MINE, nobody_fenced) == 9
    assert old.batches(OFFSETS) == [3, 8, 9, 10]
    assert newest_batch(old) == (9, True)


def test_temporary_file_of_a_zombie_is_taken_away() -> None:
    store = MemoryStore()
    old = location(store, 3)
    store.create(old.key_of("offsets/.3.5d0e.tmp"), b"v1\n{}\n-")
    store.create(old.key_of("offsets/.2.crc"), b"crc")
    fence(old, MINE, nobody_fenced)
    assert [*store.hidden(old.key_of(OFFSETS))] == [old.key_of("offsets/.2.crc")]


def test_attempt_that_is_over_deletes_nothing() -> None:
    store = MemoryStore()
    old = location(store, 3)
    store.create(old.key_of("offsets/.3.5d0e.tmp"), b"v1\n{}\n-")

    def fenced() -> None:
        raise Fenced("over")

    with pytest.raises(Fenced):
        fence(old, MINE, fenced)
    assert [*store.hidden(old.key_of(OFFSETS))]


@pytest.mark.parametrize("call", range(1, 8))
@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
def test_process_that_was_killed_is_followed_by_another(call: int, fault: Fault) -> None:
    inner = MemoryStore()
    location(inner, 3)
    inner.create(f"{KEY}/offsets/.3.5d0e.tmp", b"v1\n{}\n-")

    def plan(request: Call) -> Fault:
        return fault if request.number == call else Fault.NONE

    killed = Location(FaultyStore(inner, plan), KEY)
    try:
        fence(killed, MINE, nobody_fenced)
    except Killed:
        assert fence(Location(inner, KEY), OTHER, nobody_fenced) == 2
    assert newest_batch(Location(inner, KEY)) == (2, True)
    assert [*inner.hidden(f"{KEY}/{OFFSETS}")] == []


def test_lost_answer_is_no_fence() -> None:
    class Silent(MemoryStore):
        def create(self, key: str, body: bytes) -> object:  # type: ignore[override]
            raise CommitStateUnknown("no answer")

    with pytest.raises(CommitStateUnknown):
        fence(Location(Silent(), KEY), MINE, nobody_fenced)  # type: ignore[arg-type]


def test_foreign_entry_is_no_fence() -> None:
    assert not fence_entry_in(None)
    assert not fence_entry_in(b"v1\n{}\n-")
    assert not fence_entry_in(UNREADABLE + b"{}")
    assert not fence_entry_in(UNREADABLE + b"{")


def test_deleted_location_keeps_its_fence(tmp_path: Path) -> None:
    for store in (MemoryStore(), LocalStore(tmp_path / "root")):
        old = location(store, 3)
        for name in ("metadata", ".metadata.crc", "commits/0", "state/0/0/1.delta", "offsets/.1.crc"):
            store.create(old.key_of(name), b"x")
        fence(old, MINE, nobody_fenced)
        above = KEY.rpartition("/")[0]
        assert [*not_deleted(store, above)] == ["1-abc"]
        delete_location(old)
        assert [*store.list("")] == [Listed(old.key_of("offsets/3"), len(MINE.to_bytes()))]
        assert [*store.hidden(old.key_of("offsets"))] == []
        assert [*not_deleted(store, above)] == []
        assert newest_batch(old) == (2, True)


@pytest.mark.parametrize("planted", [10**14, 10**15, 10**17])
def test_batch_that_nobody_can_have_begun_is_not_fenced(planted: int) -> None:
    """The fence would lie where no driver ever looks, and the query could not go on from there."""
    hurt = location(MemoryStore(), 3)
    hurt.store.create(hurt.key_of(f"offsets/{planted}"), b"v1\n{}\n-")
    with pytest.raises(Damaged, match=str(planted)):
        fence(hurt, MINE, nobody_fenced)
    assert [listed.key for listed in hurt.store.list(KEY)] == [
        *(hurt.key_of(f"offsets/{number}") for number in (0, 1)),
        hurt.key_of(f"offsets/{planted}"),
        hurt.key_of("offsets/2"),
    ]
    delete_location(hurt)
    assert not list(hurt.store.list(KEY))


@pytest.mark.parametrize(
    "body", [UNREADABLE + b"[" * 100_000, UNREADABLE + b"\xff", UNREADABLE + b"7", UNREADABLE, b""]
)
def test_entry_that_nobody_can_parse_is_no_fence(body: bytes) -> None:
    assert fence_entry_in(body) is None


def test_location_that_nobody_fenced_is_deleted_whole() -> None:
    store = MemoryStore()
    delete_location(location(store, 3))
    assert store.objects == {}
