"""A store that breaks its promise is found out before use, and told apart from one that is down. Runs anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.storage import Listed, LocalStore, MemoryStore, Put, probe
from tests.support.faults import Call, Fault, FaultyStore, nth

pytestmark = pytest.mark.usefixtures("virtual_time")


class Overwriting(MemoryStore):
    """Ignores the condition: says stored, twice."""

    def create(self, key: str, body: bytes) -> Put:
        self.overwrite(key, body)
        return Put.STORED


class Lying(MemoryStore):
    """Says "exists", and overwrites."""

    def create(self, key: str, body: bytes) -> Put:
        outcome = super().create(key, body)
        self.overwrite(key, body)
        return outcome


class Discarding(MemoryStore):
    """Says stored and keeps nothing, as an endpoint that is no store."""

    def create(self, key: str, body: bytes) -> Put:
        return Put.STORED


class Constant(MemoryStore):
    """Says that everything exists."""

    def create(self, key: str, body: bytes) -> Put:
        return Put.EXISTS

    def read(self, key: str) -> bytes | None:
        return b"<html>"


class Listing(MemoryStore):
    """Lists keys in the order in which they were put, and what ``shows`` leaves of them."""

    def __init__(self, shows: Callable[[list[Listed]], list[Listed]]) -> None:
        super().__init__()
        self._shows = shows

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return iter(self._shows([Listed(key, len(body)) for key, body in self.objects.items() if key > after]))


def test_probe_passes_a_good_store_and_leaves_nothing(tmp_path: Path) -> None:
    memory, local = MemoryStore(), LocalStore(tmp_path / "root")
    probe(memory)
    probe(local)
    assert memory.objects == {}
    assert os.listdir(local.root) == []
    assert list(local.folders("")) == []


def test_probe_costs_ten_requests() -> None:
    store = FaultyStore(MemoryStore())
    probe(store)
    assert store.requests == {"create": 5, "read": 3, "list": 1, "delete": 1}


@pytest.mark.parametrize(
    ("store", "seen"),
    [
        (Overwriting(), "a second put of the same key was not refused"),
        (Lying(), "a second put of the same key was not refused"),
        (Discarding(), "an object that was stored could not be read"),
        (Constant(), "a new key seemed to exist already"),
        (Listing(lambda listed: listed), "a listing showed once, b, c, a instead of a, b, c, once"),
        (Listing(lambda listed: listed[::-1]), "a listing showed a, c, b, once instead of"),
        (Listing(lambda listed: []), "a listing showed nothing instead of"),
    ],
)
def test_probe_refuses_a_broken_store_with_what_was_seen(store: MemoryStore, seen: str) -> None:
    with pytest.raises(StoreMisconfigured, match=rf"^memory://private cannot hold checkpoints: {seen}.*NFS directory"):
        probe(store)
    assert store.objects == {}


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.TWICE, Fault.DROPPED, Fault.NOT_SENT])
@pytest.mark.parametrize("which", [1, 2])
def test_probe_passes_a_store_that_failed_for_a_moment(fault: Fault, which: int) -> None:
    probe(FaultyStore(MemoryStore(), nth({which: fault})))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.DENIED, StoreDenied),
        (Fault.MISCONFIGURED, StoreMisconfigured),
        (Fault.DROPPED, StoreUnavailable),
        (Fault.NOT_SENT, StoreUnavailable),
    ],
)
def test_probe_raises_the_error_of_the_store(fault: Fault, error: type[StoreError]) -> None:
    with pytest.raises(error):
        probe(FaultyStore(MemoryStore(), lambda _: fault))


def test_probe_passes_without_the_right_to_delete() -> None:
    denied: Callable[[Call], Fault] = nth({1: Fault.DENIED}, "delete")
    probe(FaultyStore(MemoryStore(), denied))


def test_probes_at_the_same_time_do_not_collide(tmp_path: Path) -> None:
    outer = FaultyStore(LocalStore(tmp_path))

    def another(call: Call) -> Fault:
        if call.kind == "read":
            probe(LocalStore(tmp_path))
        return Fault.NONE

    outer.plan = another
    probe(outer)
