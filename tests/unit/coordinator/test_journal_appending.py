"""The result of an append to the journal, whatever fault hits its requests (docs/inside/journal.md). Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.coordinator.entry import LARGEST_EVENTS
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import (
    Busy,
    CommitStateUnknown,
    InvalidConfig,
    NotRunning,
    StoreDenied,
    StoreUnavailable,
    TooLarge,
    TwoOwners,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.commands import DoneAlready
from airflow_checkpoint_provider.protocol.events import LaunchPlanned, Request
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.faults import Call, Fault, FaultyStore, always, nth
from tests.support.histories import complete, entry, launch, start
from tests.support.journals import KEYS, SHORT, numbers, open_journal, prune, raw, write

pytestmark = pytest.mark.usefixtures("virtual_time")


def unharmed(_: Call) -> Fault:
    return Fault.NONE


def running(store: FaultyStore | MemoryStore, segment: int = 64) -> Journal:
    journal = open_journal(store, segment=segment)
    journal.append(launch())
    journal.append(start())
    return journal


def test_append_returns_number_and_events() -> None:
    answer = open_journal(MemoryStore()).append(launch())
    assert answer.n == 0
    assert [type(event).__name__ for event in answer.events] == ["HistoryOpened", "LaunchPlanned"]
    assert answer.done is None


def test_repeated_command_is_done_already_and_writes_nothing() -> None:
    store = MemoryStore()
    open_journal(store).append(launch())
    answer = open_journal(store).append(launch())
    assert (answer.n, answer.events, answer.done) == (0, (), DoneAlready(1))
    assert numbers(store) == [0]


def test_refused_command_raises_and_writes_nothing() -> None:
    store = MemoryStore()
    open_journal(store).append(launch())
    with pytest.raises(TwoOwners):
        open_journal(store).append(launch(try_number=2, task="report"))
    assert numbers(store) == [0]


def test_only_a_launch_begins_a_history() -> None:
    store = MemoryStore()
    with pytest.raises(NotRunning):
        open_journal(store).append(c.Trigger(request=Request(token="r")))
    assert store.objects == {}


def test_lost_race_is_decided_again() -> None:
    """B6: "exists" with another nonce is an entry of another writer, which the decision must count."""
    store = MemoryStore()
    first, other = open_journal(store), open_journal(store)
    write(first)
    other.catch_up()
    first.append(launch(try_number=2))
    assert other.append(launch(try_number=3)).n == 2
    assert [launch.spec.try_number for launch in other.state.launches] == [1, 2, 3]


def test_refusal_is_decided_on_the_newest_state() -> None:
    """The state that the reader remembers says busy; the checkpoint was aborted meanwhile."""
    store = MemoryStore()
    reader, other = running(store), open_journal(store)
    reader.append(c.Trigger(request=Request(token="one")))
    with pytest.raises(Busy):
        reader.append(c.Trigger(request=Request(token="two")))
    other.append(c.Abort(id=1, reason="expired"))
    assert reader.append(c.Trigger(request=Request(token="two"))).n == 4


def test_done_already_is_decided_on_the_newest_state() -> None:
    """The request got an aborted checkpoint; since then a later try triggered another."""
    store = MemoryStore()
    reader = running(store)
    reader.append(c.Trigger(request=Request(token="one")))
    reader.append(c.Abort(id=1, reason="expired"))
    open_journal(store).append(c.Trigger(request=Request(token="one", try_number=2)))
    assert reader.append(c.Trigger(request=Request(token="one"))).done == DoneAlready(2)


def test_command_is_built_again_when_the_state_changed() -> None:
    """The observation was about attempt 1; meanwhile the journal has another."""
    store = MemoryStore()
    journal = running(store)
    other = open_journal(store)
    other.append(launch(try_number=2))
    asked: list[int] = []

    def command(state: object) -> c.Command:
        asked.append(journal.state.n)
        return launch(try_number=3, seen_alive=journal.state.next_launch == 2)

    answer = journal.append(command)
    assert asked == [1, 2]
    assert isinstance(answer.events[0], LaunchPlanned)


# -- void wins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stubs", [False, True], ids=["boundaries stand", "boundaries are stubs"])
@pytest.mark.parametrize("slept_at", [1, 2, 3, 5, 6, 7])
def test_win_is_void_if_the_next_boundary_exists(slept_at: int, stubs: bool) -> None:
    """B1: the number was free because it was compacted. The command is written after the entries of all others."""
    store = MemoryStore()
    sleeper = open_journal(store, segment=SHORT)
    write(sleeper, slept_at)
    write(open_journal(store, segment=SHORT), 20 - slept_at)
    prune(store, segment=SHORT, stubs=stubs)
    assert slept_at % SHORT == 0 or slept_at not in numbers(store)

    answer = sleeper.append(launch(try_number=100))

    assert answer.n == 20
    assert slept_at in numbers(store), "the phantom entry is stored, and no reader believes it"
    assert sleeper.state == open_journal(store, segment=SHORT).catch_up()
    assert [launch.spec.try_number for launch in sleeper.state.launches] == [*range(1, 21), 100]


def test_void_win_of_a_repeated_command_is_done_already() -> None:
    """The win may have been real, with the rest of the segment written by others; deciding again must be harmless (B7)."""
    store = MemoryStore()
    sleeper = open_journal(store, segment=SHORT)
    write(sleeper, 2)
    other = open_journal(store, segment=SHORT)
    other.append(launch(try_number=99))
    for _ in range(10):
        other.append(lambda state: launch("day-2", state.next_launch))
    prune(store, segment=SHORT)
    other.append(launch("day-1", 100))
    assert sleeper.append(launch("day-1", 100)).done == DoneAlready(14)


# -- answers that are lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        {1: Fault.LOST},
        {1: Fault.TWICE},
        {1: Fault.DROPPED},
        {1: Fault.NOT_SENT},
        {1: Fault.DROPPED, 2: Fault.LOST},
        {1: Fault.DROPPED, 2: Fault.TWICE},
        {1: Fault.NOT_SENT, 2: Fault.DROPPED, 3: Fault.LOST},
    ],
)
def test_lost_answer_is_settled_by_the_same_bytes(faults: dict[int, Fault]) -> None:
    """B6: "exists" may be caused by the own earlier request; the entry is written once and recognized."""
    objects = MemoryStore()
    store = FaultyStore(objects)
    journal = running(store)
    store.requests.clear()
    store.plan = nth(faults)
    answer = journal.append(c.Trigger(request=Request(token="r")))
    assert (answer.n, answer.done) == (2, None)
    assert numbers(objects) == [0, 1, 2]
    assert open_journal(store).catch_up() == journal.state


def test_late_own_put_is_recognized() -> None:
    store = FaultyStore(MemoryStore(), late_by=2)
    journal = running(store)
    store.requests.clear()
    store.plan = nth({1: Fault.LATE})
    assert journal.append(c.Trigger(request=Request(token="r"))).n == 2
    store.land()
    assert journal.state.next_id == 2
    assert open_journal(store).catch_up() == journal.state


@pytest.mark.parametrize("fault", [Fault.DROPPED, Fault.LATE])
def test_append_without_an_answer_is_unknown(fault: Fault) -> None:
    """B5: an entry that is absent now may still be written by the lost request."""
    store = FaultyStore(MemoryStore())
    journal = running(store)
    before = journal.state
    store.plan = always(fault)
    with pytest.raises(CommitStateUnknown, match=r"0000000000000002.*Nothing was cleaned up"):
        journal.append(c.Trigger(request=Request(token="r")))
    assert journal.state == before


@pytest.mark.parametrize("lands", ["before", "after", "never"])
def test_unknown_command_is_repeated_and_done_once(lands: str) -> None:
    store = FaultyStore(MemoryStore())
    journal = running(store)
    store.plan = always(Fault.LATE)
    with pytest.raises(CommitStateUnknown):
        journal.append(c.Trigger(request=Request(token="r")))
    store.plan = unharmed
    if lands == "before":
        store.land()
    answer = journal.append(c.Trigger(request=Request(token="r")))
    if lands == "after":
        store.land()
    assert (answer.done is not None) == (lands == "before")
    state = open_journal(store).catch_up()
    assert [checkpoint.id for checkpoint in state.checkpoints] == [1]
    assert state == journal.catch_up()


@pytest.mark.parametrize("lands", ["before", "after"])
def test_other_command_may_take_the_number_of_an_unknown_entry(lands: str) -> None:
    store = FaultyStore(MemoryStore())
    journal = running(store)
    store.plan = always(Fault.LATE)
    with pytest.raises(CommitStateUnknown):
        journal.append(c.Trigger(request=Request(token="r")))
    store.plan = unharmed
    if lands == "before":
        store.land()
    assert journal.append(c.EndAttempt(epoch=1, outcome="failed")).n == (3 if lands == "before" else 2)
    store.land()
    state = open_journal(store).catch_up()
    assert state == journal.state
    assert [checkpoint.status for checkpoint in state.checkpoints] == (["aborted"] if lands == "before" else [])


@pytest.mark.parametrize("fault", [Fault.DROPPED, Fault.NOT_SENT, Fault.DENIED, Fault.MISCONFIGURED])
def test_win_without_a_look_at_the_boundary_is_unknown(fault: Fault) -> None:
    """The put was answered, the read of the next boundary was not: the win may be void."""
    store = FaultyStore(MemoryStore())
    journal = running(store)
    before = journal.state
    store.plan = always(fault, "read")
    with pytest.raises(CommitStateUnknown):
        journal.append(c.Trigger(request=Request(token="r")))
    assert journal.state == before
    store.plan = unharmed
    assert journal.append(c.Trigger(request=Request(token="r"))).done == DoneAlready(1)


@pytest.mark.parametrize(
    ("fault", "error"), [(Fault.DENIED, StoreDenied), (Fault.NOT_SENT, StoreUnavailable)], ids=["denied", "never sent"]
)
def test_refused_or_unsent_put_is_not_unknown(fault: Fault, error: type[Exception]) -> None:
    store = FaultyStore(MemoryStore())
    journal = running(store)
    store.plan = always(fault)
    with pytest.raises(error):
        journal.append(c.Trigger(request=Request(token="r")))
    store.plan = unharmed
    assert journal.append(c.Trigger(request=Request(token="r"))).n == 2


# -- limits --------------------------------------------------------------------------------------------------------------


def test_limit_of_events_does_not_hold_for_a_boundary() -> None:
    """Events are limited to 256 KiB; a boundary holds the state of many such entries. ``LARGEST_LIST`` limits that."""
    store = MemoryStore()
    journal = running(store, segment=SHORT)
    fits = [entry(f"state-{n}", (f"state/state-{n}/1-{'0' * 32}",), 1) for n in range(600)]
    for number in range(1, 4):
        journal.append(c.Trigger(request=Request(token=f"r{number}")))
        journal.append(complete(number, *fits))
    journal.append(c.Trigger(request=Request(token="too many")))
    boundaries = [len(store.objects[KEYS.entry(n)]) for n in numbers(store) if n % SHORT == 0]
    assert max(boundaries) > LARGEST_EVENTS

    before = journal.state
    with pytest.raises(TooLarge, match="too many file sets in one checkpoint, or too long a text;") as caught:
        journal.append(complete(4, *(entry(f"state-{n}", (f"state/state-{n}/1-{'0' * 300}",), 1) for n in range(600))))
    assert caught.value.about["size"] > LARGEST_EVENTS
    assert journal.state == before
    assert journal.append(c.Abort(id=4, reason="too large")).events


def test_three_hundred_entries_have_five_snapshots() -> None:
    store = MemoryStore()
    journal = open_journal(store)
    write(journal, 300)
    assert numbers(store) == list(range(300))
    assert [n for n in range(300) if "snapshot" in raw(store, n)] == [0, 64, 128, 192, 256]
    assert len({raw(store, n)["nonce"] for n in range(300)}) == 300
    assert journal.state == open_journal(store).catch_up()


def test_entry_names_its_writer() -> None:
    store = MemoryStore()
    write(open_journal(store, place="cli"))
    assert raw(store, 0)["by"] == {"place": "cli", "owner": "flights.delays", "host": "host", "epoch": None}


def test_foresee_raises_a_refusal_and_writes_nothing() -> None:
    """For a dry run: a refusal is raised; a command that would be written, or is done already, returns nothing."""
    store = MemoryStore()
    journal = running(store)
    before = dict(store.objects)
    with pytest.raises(TwoOwners):
        journal.foresee(launch(try_number=2, task="another"))
    with pytest.raises(TwoOwners):
        journal.foresee(lambda state: launch(try_number=state.next_launch, task="another"))
    journal.foresee(launch(try_number=2))
    journal.foresee(start())
    assert store.objects == before


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.DENIED])
def test_void_win_without_a_further_read_is_unknown(fault: Fault) -> None:
    """The win may have been real, so the error of the store alone would say too little."""
    inner = MemoryStore()
    store = FaultyStore(inner)
    sleeper = open_journal(store, segment=SHORT)
    write(sleeper, 2)
    write(open_journal(inner, segment=SHORT), 10)
    prune(inner, segment=SHORT)
    begun = store.requests["read"]
    store.plan = lambda call: fault if call.kind == "read" and call.nth > begun + 1 else Fault.NONE
    with pytest.raises(CommitStateUnknown, match=r"whether an entry after .* was written, and counts"):
        sleeper.append(launch(try_number=100))
    assert 2 in numbers(inner)


@pytest.mark.parametrize("target", ["/a:", "/a\nb", "memory://x/savepoint-orders-9-9f3c"])
def test_entry_that_nobody_could_read_is_not_written(target: str) -> None:
    """Else the whole history would be lost with it."""
    journal = running(MemoryStore())
    request = e.Request(token="s", kind="savepoint", folder="memory://x", nonce="9f3c")
    unreadable = e.CheckpointTriggered(
        id=1, epochs=(1,), branch=0, plan=("",), request=request, timeout_s=600.0, target=target
    )
    with pytest.raises(InvalidConfig, match="nothing was written, because nobody could read it again"):
        journal._put_next((unreadable,))
    assert open_journal(journal.store).catch_up() == journal.state


def test_request_of_a_task_under_test_can_be_read() -> None:
    """``airflow tasks test`` runs a task with try number 0."""
    journal = running(MemoryStore())
    journal.append(c.Trigger(request=Request(token="tasks test", try_number=0, origin="task")))
    (pending,) = open_journal(journal.store).catch_up().pending
    assert pending.request.try_number == 0
