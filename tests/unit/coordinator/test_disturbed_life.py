"""A run's whole life goes on after any disturbance of its store, at any request, and nothing is lost. Runs anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from airflow_checkpoint_provider.errors import StoreDenied
from airflow_checkpoint_provider.storage import MemoryStore, S3Store
from airflow_checkpoint_provider.storage.base import Listed
from tests.support.faults import Call, Fault
from tests.support.life import Disturbed, Life
from tests.support.s3server import Key, S3Server
from tests.support.saved import memory

SOME = pytest.mark.parametrize(
    "every", [pytest.param(7, id="some"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)


pytestmark = pytest.mark.usefixtures("virtual_time")


Listing = list[Listed]


class OddStore(MemoryStore):
    """Objects that other processes change, and listings that are twisted by ``twist``, until ``heal``."""

    def __init__(self) -> None:
        super().__init__("odd")
        self.known: dict[str, Listed] = {}  # all that was ever listed
        self._changed: dict[str, tuple[bytes, bytes | None]] = {}  # before and after
        self.heal()

    def heal(self) -> None:
        self.twist: Callable[[Listing], Listing] = lambda listed: listed
        for key, (before, after) in self._changed.items():
            if self.objects.get(key) == after:
                self.objects[key] = before
        self._changed.clear()

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        listed = [*super().list(prefix, after)]
        self.known |= {found.key: found for found in listed}
        return iter(self.twist(listed))

    def vanish(self, key: str) -> None:
        """Delete an object. An entry of a journal does not vanish: nobody could know that there was one."""
        if key in self.objects and "/journal/" not in key:
            self._changed[key] = (self.objects.pop(key), None)

    def grow(self, key: str) -> None:
        if key in self.objects and key not in self._changed:
            self._changed[key] = (self.objects[key], self.objects[key] + b"more")
            self.objects[key] += b"more"

    # -- listings --------------------------------------------------------------------------------------------------

    def shuffled(self, listed: Listing) -> Listing:
        return Random(len(listed)).sample(listed, len(listed))

    def stale(self, listed: Listing) -> Listing:
        """Return the listing with what was deleted below the same folders."""
        folders = {found.key.rpartition("/")[0] for found in listed}
        return sorted(
            {*listed, *(found for key, found in self.known.items() if key.rpartition("/")[0] in folders)},
            key=lambda found: found.key,
        )

    def grown(self, listed: Listing) -> Listing:
        """Let each object grow as soon as it is listed."""
        for found in listed:
            self.grow(found.key)
        return listed

    def vanished(self, listed: Listing) -> Listing:
        for found in listed:
            self.vanish(found.key)
        return listed


LISTINGS: dict[str, Callable[[OddStore, Listing], Listing]] = {
    "reversed": lambda store, listed: listed[::-1],
    "shuffled": OddStore.shuffled,
    "each twice": lambda store, listed: [*listed, *listed],
    "without the last": lambda store, listed: listed[:-1],
    "empty": lambda store, listed: [],
    "stale": OddStore.stale,
    "other sizes": lambda store, listed: [replace(found, size=found.size + 4) for found in listed],
    "grown after it": OddStore.grown,
    "vanished after it": OddStore.vanished,
}
HIDING = ("without the last", "empty")  # what is not listed is not deleted: it is left


def _denied(store: OddStore, call: Call) -> Fault:
    return Fault.DENIED


def _unavailable(store: OddStore, call: Call) -> Fault:
    return Fault.NOT_SENT


def _vanished(store: OddStore, call: Call) -> Fault:
    if call.kind == "read":
        store.vanish(call.key)
    return Fault.NONE


def _grown(store: OddStore, call: Call) -> Fault:
    if call.kind == "read":
        store.grow(call.key)
    return Fault.NONE


DISTURBANCES = {"denied": _denied, "unavailable": _unavailable, "vanished": _vanished, "grown": _grown}


def disturbed(begin: int, disturb: Callable[[OddStore, Call], Fault], kind: str = "") -> Life:
    """Live with what ``disturb`` does from request ``begin`` of this kind to the end of the step, or until it fails."""
    store = OddStore()
    life = Life(Disturbed(store), memory().uri, heal=store.heal)

    def plan(call: Call) -> Fault:
        life.begun |= kind in ("", call.kind) and (call.nth if kind else call.number) >= begin
        return disturb(store, call) if life.begun else Fault.NONE

    life.store.plan = plan
    life.live()
    assert life.table == undisturbed().table
    return life


@cache
def undisturbed() -> Life:
    life = Life(Disturbed(MemoryStore()), memory().uri)
    life.live()
    assert life.errors == []
    return life


def _twist(listing: str) -> Callable[[OddStore, Call], Fault]:
    def disturb(store: OddStore, call: Call) -> Fault:
        store.twist = lambda listed: LISTINGS[listing](store, listed)
        return Fault.NONE

    return disturb


@SOME
@pytest.mark.parametrize("listing", LISTINGS)
def test_life_goes_on_after_an_odd_listing(listing: str, every: int) -> None:
    for nth in range(1, undisturbed().store.requests["list"] + 1, every):
        life = disturbed(nth, _twist(listing), "list")
        assert listing in HIDING or life.left() == undisturbed().left()


@SOME
@pytest.mark.parametrize("name", DISTURBANCES)
def test_life_goes_on_after_a_disturbance(name: str, every: int) -> None:
    failed = 0
    for number in range(1, undisturbed().store.requests.total() + 1, every if every == 1 else 5 * every):
        life = disturbed(number, DISTURBANCES[name])
        assert life.left() == undisturbed().left()
        failed += bool(life.errors)
    assert failed


# -- keys of S3 that become invalid --------------------------------------------------------------------------------------

REFUSED = {
    "SignatureDoesNotMatch": lambda key: replace(key, secret="another"),
    "AccessDenied": lambda key: replace(key, may=lambda method, path: False),
    "ExpiredToken": lambda key: replace(key, expires=0.0),
}


@pytest.mark.parametrize("every", [pytest.param(200, id="one"), pytest.param(20, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize(  # one code at one request shows it
    "code", [code if code == "AccessDenied" else pytest.param(code, marks=pytest.mark.slow) for code in REFUSED]
)
def test_life_goes_on_after_keys_that_were_refused(s3: S3Server, bucket: str, code: str, every: int) -> None:
    s3.keys["DRIVER"] = valid = Key("driver-secret", token="a-token")
    for number in range(every, undisturbed().store.requests.total(), every):
        prefix = f"{code}-{number}"

        def heal() -> None:
            s3.keys["DRIVER"] = valid

        life = Life(
            Disturbed(S3Store(bucket, prefix, s3.settings("DRIVER"))), f"s3://{bucket}/{prefix}-savepoints", heal
        )

        def plan(call: Call, number: int = number, life: Life = life) -> Fault:
            if call.number == number:
                s3.keys["DRIVER"], life.begun = REFUSED[code](valid), True
            return Fault.NONE

        life.store.plan = plan
        life.live()
        assert life.table == undisturbed().table
        assert life.left() == undisturbed().left()
        for error in life.errors:
            assert isinstance(error, StoreDenied), repr(error)
            assert code in str(error)
            assert re.search(r"Allow s3:|Check key id and secret|give a new one", str(error)), error
