"""Which entries a reader of the journal believes (docs/inside/properties.md, P7). Runs anywhere."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from airflow_checkpoint_provider.coordinator.journal import Journal, utc_text
from airflow_checkpoint_provider.errors import Damaged, FormatTooNew, HistoryIsClosed, OtherIncarnation
from airflow_checkpoint_provider.protocol.events import HistoryOpened
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.histories import launch
from tests.support.journals import KEYS, SHORT, numbers, open_journal, prune, raw, rewrite, write, written


def truth(store: MemoryStore, segment: int = SHORT) -> State:
    return open_journal(store, segment=segment).catch_up()


def sleeper(store: MemoryStore, entries: int) -> Journal:
    """Return a reader that read the first ``entries`` of a journal and then slept."""
    journal = open_journal(store, segment=SHORT)
    write(journal, entries)
    return journal


def test_absent_history_is_the_empty_state() -> None:
    store = MemoryStore()
    assert open_journal(store).catch_up() == State()
    assert open_journal(store).poll().n == -1
    assert store.objects == {}


@pytest.mark.parametrize("entries", [1, 2, 63, 64, 65, 127, 128, 129, 300])
def test_new_reader_has_the_state_of_the_writer(entries: int) -> None:
    store = MemoryStore()
    writer = open_journal(store)
    write(writer, entries)
    state = open_journal(store).catch_up()
    assert state == writer.state
    assert state.n == entries - 1
    assert state.next_launch == entries + 1


@pytest.mark.parametrize("entries", range(1, 20))
def test_sleeping_reader_catches_up(entries: int) -> None:
    store = MemoryStore()
    reader = sleeper(store, entries)
    write(open_journal(store, segment=SHORT), 20 - entries)
    assert reader.catch_up() == truth(store)
    assert reader.state.n == 19


def test_only_boundaries_hold_the_state_before_them() -> None:
    store = written(9, segment=SHORT)
    assert [n for n in range(9) if "snapshot" in raw(store, n)] == [0, 4, 8]
    snapshot = State.from_json(raw(store, 8)["snapshot"])
    del store.objects[KEYS.entry(8)]
    assert truth(store) == snapshot


@pytest.mark.parametrize("stubs", [False, True], ids=["boundaries stand", "boundaries are stubs"])
@pytest.mark.parametrize("entries", [5, 8, 9, 17, 33, 40])
def test_compacted_journal_gives_the_same_state(entries: int, stubs: bool) -> None:
    """A reader that meets a stub goes on to later boundaries."""
    store = written(entries, segment=SHORT)
    whole = truth(store)
    prune(store, segment=SHORT, stubs=stubs)
    assert truth(store) == whole


@pytest.mark.parametrize("stubs", [False, True], ids=["boundaries stand", "boundaries are stubs"])
@pytest.mark.parametrize("believed", [1, 2, 3, 4, 5, 7, 8, 11])
def test_absent_entry_is_not_believed_before_the_boundary_is_absent(believed: int, stubs: bool) -> None:
    """B3: the next number is absent because it was compacted."""
    store = MemoryStore()
    reader = sleeper(store, believed)
    write(open_journal(store, segment=SHORT), 30 - believed)
    prune(store, segment=SHORT, stubs=stubs)
    assert reader.catch_up() == truth(store)
    assert reader.state.n == 29


def phantom(store: MemoryStore, n: int) -> None:
    """Write the entry that a sleeping writer puts at a compacted number."""
    body = raw(store, max(numbers(store))) | {"n": n, "nonce": "phantom"}
    body.pop("snapshot", None)
    body["events"] = [{"kind": "history_closing", "reason": "a phantom"}]
    store.objects[KEYS.entry(n)] = canonical(body)


def test_phantom_entry_is_not_believed() -> None:
    """P7: an entry after which the next boundary exists is ignored."""
    store = MemoryStore()
    reader = sleeper(store, 2)
    write(open_journal(store, segment=SHORT), 10)
    prune(store, segment=SHORT)
    phantom(store, 2)
    assert reader.catch_up().closing is None
    assert truth(store).closing is None
    assert reader.state == truth(store)


def test_reader_passes_a_boundary_that_was_deleted_by_hand_or_reports_it() -> None:
    """A reader after the gap goes on; a reader before it raises."""
    store = MemoryStore()
    reader = sleeper(store, 6)
    write(open_journal(store, segment=SHORT), 8)
    whole = truth(store)
    prune(store, segment=SHORT, stubs=True)
    del store.objects[KEYS.entry(4)]
    assert reader.catch_up() == whole
    with pytest.raises(HistoryIsClosed, match="deleted by hand"):
        truth(store)


def test_history_that_ends_in_a_stub_is_refused() -> None:
    """Only the last stub of a closed history may end a journal; nothing may be appended here as if it were empty."""
    store = written(9, segment=SHORT)
    for n in (0, 4, 8):
        rewrite(store, n, stub=True)
    with pytest.raises(HistoryIsClosed) as caught:
        open_journal(store, segment=SHORT).append(launch(try_number=99))
    assert KEYS.entry(8) in caught.value.message


# -- polls ---------------------------------------------------------------------------------------------------------------


def test_poll_sees_the_next_entry_at_once() -> None:
    store = MemoryStore()
    reader = sleeper(store, 2)
    assert reader.poll().n == 1
    write(open_journal(store, segment=SHORT), 1)
    assert reader.poll().n == 2


def test_tenth_poll_sees_that_the_segment_was_compacted() -> None:
    store = MemoryStore()
    reader = sleeper(store, 2)
    write(open_journal(store, segment=SHORT), 10)
    prune(store, segment=SHORT)
    seen = [reader.poll().n for _ in range(10)]
    assert seen == [1] * 9 + [11]


def test_poll_of_an_absent_history_sees_its_first_entry() -> None:
    store = MemoryStore()
    reader = open_journal(store)
    assert reader.poll().n == -1
    write(open_journal(store))
    assert reader.poll().n == 0


# -- other incarnations --------------------------------------------------------------------------------------------------


def begun_anew(store: MemoryStore, entries: int) -> None:
    """Delete the history and begin it with another incarnation."""
    store.objects.clear()
    write(open_journal(store, segment=SHORT), entries, incarnation="an0ther")


@pytest.mark.parametrize("entries", [3, 4, 5, 9])
def test_reader_of_an_old_incarnation_raises(entries: int) -> None:
    store = MemoryStore()
    reader = sleeper(store, 2)
    begun_anew(store, entries)
    before = reader.state
    with pytest.raises(OtherIncarnation, match=r"begun anew.*\[CKP622\]"):
        reader.catch_up()
    assert reader.state == before


def test_reader_of_an_old_incarnation_raises_if_the_new_one_is_shorter() -> None:
    store = MemoryStore()
    reader = sleeper(store, 6)
    begun_anew(store, 7)
    with pytest.raises(OtherIncarnation):
        reader.catch_up()


def test_late_entry_of_an_old_incarnation_raises() -> None:
    """docs/inside/journal.md: the late entry is a boundary, whose snapshot would otherwise replace the state of the new history."""
    store = MemoryStore()
    zombie = sleeper(store, 4)
    begun_anew(store, 2)
    write(zombie)
    assert numbers(store) == [0, 1, 4]
    with pytest.raises(OtherIncarnation, match="0000000000000004"):
        open_journal(store, segment=SHORT).catch_up()


def test_incarnation_is_that_of_the_opening_event() -> None:
    store = written(1)
    opened = raw(store, 0)["events"][0]
    assert opened["kind"] == "history_opened"
    assert raw(store, 0)["inc"] == HistoryOpened.from_json(opened).incarnation == "1ncarnation"


# -- what cannot be read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"v": 2}, FormatTooNew, "has format 2"),
        ({"n": 7}, Damaged, "says that it is entry 7"),
        ({"events": [{"kind": "history_split"}]}, FormatTooNew, "'history_split'"),
        ({"events": [{"kind": "launch_adopted", "launch": "one"}]}, Damaged, "LaunchAdopted"),
        ({"events": "all of them"}, Damaged, "0000000000000005"),
        ({"events": [7]}, Damaged, "0000000000000005"),
        ({"events": None}, Damaged, "0000000000000005"),
        ({"n": 5.0}, Damaged, "0000000000000005"),
        ({"n": True}, Damaged, "0000000000000005"),
        ({"at": "soon"}, Damaged, "0000000000000005.* is not a valid time with a zone"),
        ({"by": "me"}, Damaged, "0000000000000005"),
        ({"stub": "no"}, Damaged, "0000000000000005"),
        ({"stub": False}, Damaged, "0000000000000005"),
    ],
)
def test_unreadable_entry_stops_the_reader(fields: dict[str, object], error: type[Exception], says: str) -> None:
    """Such an entry is never skipped: a decision on half a history would be wrong."""
    store = written(7, segment=SHORT)
    rewrite(store, 5, **fields)
    reader = open_journal(store, segment=SHORT)
    for _ in range(2):
        with pytest.raises(error, match=says):
            reader.catch_up()
        assert reader.state.n <= 4


@pytest.mark.parametrize("field", ["inc", "n", "nonce", "at", "by", "events"])
def test_entry_without_a_field_is_damaged(field: str) -> None:
    store = written(2)
    body = raw(store, 1)
    del body[field]
    store.objects[KEYS.entry(1)] = canonical(body)
    with pytest.raises(Damaged, match=field):
        open_journal(store).catch_up()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'"text"', b"{}", b'{"v": "1"}'])
def test_body_that_is_no_entry_is_damaged(body: bytes) -> None:
    store = written(2)
    store.objects[KEYS.entry(1)] = body
    with pytest.raises(Damaged, match="0000000000000001"):
        open_journal(store).catch_up()


def test_boundary_without_its_snapshot_is_damaged() -> None:
    store = written(6, segment=SHORT)
    body = raw(store, 4)
    del body["snapshot"]
    store.objects[KEYS.entry(4)] = canonical(body)
    with pytest.raises(Damaged, match="without a snapshot"):
        open_journal(store, segment=SHORT).catch_up()


@pytest.mark.parametrize("closed", [{}, {"n": 3}, {"n": 68}])
def test_closed_history_that_names_another_number_is_damaged(closed: dict[str, object]) -> None:
    """A reader would go back to that number, and read to this stub again, for ever."""
    store = written(1, segment=SHORT)
    stub = {"v": 1, "inc": raw(store, 0)["inc"], "n": 0, "stub": True, "closed": closed}
    store.objects[KEYS.entry(0)] = canonical(stub)
    reader = open_journal(store, segment=SHORT)
    with pytest.raises(Damaged, match="0000000000000000 says that its history was closed at entry"):
        reader.catch_up()


@pytest.mark.parametrize("boundaries", [2, 5, 9])
def test_reader_goes_on_from_a_boundary_that_becomes_a_stub(boundaries: int) -> None:
    """Between any two requests of the reader ten segments are written and all boundaries but the last become stubs."""
    for step in range(1, 12):
        inner = written(boundaries * SHORT, segment=SHORT)
        store = FaultyStore(inner, partial(_grown, inner, step))
        assert open_journal(store, segment=SHORT).catch_up() == truth(inner)


def _grown(store: MemoryStore, step: int, call: Call) -> Fault:
    if call.number == step and call.kind == "read":  # what comes before the listing is not missing, and is not read
        write(open_journal(store, segment=SHORT), 10 * SHORT)
        prune(store, segment=SHORT, stubs=True)
    return Fault.NONE


@pytest.mark.parametrize("believed", [1, 2, 3])
def test_boundary_is_not_taken_for_the_next_entry(believed: int) -> None:
    """Otherwise the phantom at the last number before the boundary would be believed."""
    store = MemoryStore()
    reader = sleeper(store, believed)
    write(open_journal(store, segment=SHORT), 7 - believed)
    for n in range(believed, SHORT):
        phantom(store, n)
    assert reader.catch_up() == truth(store)
    assert not reader.state.closing


def test_times_compare_as_texts() -> None:
    """All times have one length and are in UTC."""
    tokyo = timezone(timedelta(hours=9))
    moments = [datetime(2026, 11, 20, 9, 0, 0, micro, tzinfo=tokyo) for micro in (0, 1000, 999_999)]
    assert [utc_text(moment) for moment in moments] == [
        "2026-11-20T00:00:00.000Z", "2026-11-20T00:00:00.001Z", "2026-11-20T00:00:00.999Z",
    ]  # fmt: skip


# -- a missing entry -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [2, SHORT - 1, SHORT + 3, 3 * SHORT - 1])
def test_missing_entry_is_named_by_whoever_reads_the_journal_first(entries: int) -> None:
    """Otherwise what follows it is out of sight, until somebody uses its number again."""
    store = written(entries, segment=SHORT)
    newest = max(numbers(store))
    assert open_journal(store, segment=SHORT).catch_up() == truth(store)
    for number in range(newest // SHORT * SHORT, newest):
        torn = MemoryStore()
        torn.objects = {key: body for key, body in store.objects.items() if key != KEYS.entry(number)}
        with pytest.raises(Damaged, match=f"{KEYS.entry(number)} is missing, and {KEYS.entry(number + 1)} is there"):
            open_journal(torn, segment=SHORT).catch_up()


def test_nobody_writes_into_a_gap() -> None:
    """The sweep of another run, say, or a request: the gap would be hidden for good."""
    store = written(2, segment=SHORT)
    reader = open_journal(store, segment=SHORT)
    write(open_journal(store, segment=SHORT), 2)
    del store.objects[KEYS.entry(2)]
    before = dict(store.objects)
    with pytest.raises(Damaged, match=f"{KEYS.entry(2)} is missing"):
        write(reader)
    with pytest.raises(Damaged, match=f"{KEYS.entry(2)} is missing"):
        reader.poll()
    assert store.objects == before


@pytest.mark.parametrize("name", ["@eaDir/x", "Thumbs.db", f"{7:016d}~", f"{7:016d}.bak", ".DS_Store", "7"])
def test_files_of_others_beside_the_entries_are_no_entries(name: str) -> None:
    store = written(2, segment=SHORT)
    store.objects[f"{KEYS.journal}/{name}"] = b"?"
    assert open_journal(store, segment=SHORT).catch_up().n == 1


@pytest.mark.parametrize("more", [1, 2, SHORT, 2 * SHORT])
def test_entries_that_are_written_while_a_journal_is_read_are_not_taken_for_torn_ones(more: int) -> None:
    store = written(2, segment=SHORT)

    def others_write(call: Call) -> Fault:
        if call.kind == "list" and len(numbers(store)) == 2:
            write(open_journal(store, segment=SHORT), more)
        return Fault.NONE

    state = open_journal(FaultyStore(store, others_write), segment=SHORT).catch_up()
    assert state.n == 1
    assert truth(store).n > state.n
