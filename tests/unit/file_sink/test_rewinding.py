"""A file sink that goes back: what is moved aside, and what is put back. Killed at each request, repeated, by several."""

from __future__ import annotations

from contextlib import suppress

import pytest

from airflow_checkpoint_provider.errors import Damaged, Refused, SinkMoved, StoreUnavailable
from airflow_checkpoint_provider.file_sink.log import LOG, FileSinkLog
from airflow_checkpoint_provider.file_sink.rewinding import (
    Aside,
    all_aside,
    forget,
    move_aside,
    put_back,
    remove,
    to_put_back,
)
from airflow_checkpoint_provider.spark.queries.sinks.base import WayBack
from airflow_checkpoint_provider.storage import MemoryStore, Store
from tests.support.faults import Call, Fault, FaultyStore, Killed, Plan, SlowFolder, served
from tests.support.sinks import FOLDER, folder_in, named_by, rows_of, saved_at, sink_in, way_back, write_batch

BATCHES, SAVED = 9, 4
ALL = [f"day={batch}/part-0" for batch in range(BATCHES)]
KEPT, TAKEN = ALL[: SAVED + 1], ALL[SAVED + 1 :]
ASIDE = "_rewound-2-def"
AT = "2026-11-20T00:00:00+00:00"


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for batch in range(BATCHES):
        write_batch(store, batch)
    return store


def test_entry_that_a_listing_lacks_is_looked_for_again() -> None:
    store = SlowFolder()
    for batch in range(BATCHES):
        write_batch(store, batch)
    store.missed, store.looks = f"{FOLDER}/{LOG}/7", 1
    assert named_by(store) == ALL
    assert store.looks == 0


def decided_way(store: Store) -> WayBack:
    """Return the way back to batch ``SAVED`` that the journal names after a look."""
    sink = sink_in(store)
    gone_back = sink.plan_rewind(saved_at(store, SAVED, f"{store.uri}/{FOLDER}/{KEPT[-1]}"), allowed=True)
    return way_back(gone_back, sink.next_number(BATCHES))


def back(store: Store) -> Aside | None:
    log = FileSinkLog(folder_in(store))
    return put_back(log, to_put_back(all_aside(log.files_of)), "ann", AT)  # as the command chooses it


def is_gone_back(store: Store) -> None:
    """Assert that readers see what stays, and that all else lies in the folder."""
    assert named_by(store) == KEPT
    for name in TAKEN:
        assert store.read(f"{FOLDER}/{ASIDE}/{name}") == rows_of(name)
        assert store.read(f"{FOLDER}/{name}") is None
    (aside,) = all_aside(folder_in(store))
    assert [file.name for file in aside.manifest.files] == TAKEN
    assert aside.manifest.bytes == sum(len(rows_of(name)) for name in TAKEN)


def is_put_back(store: Store, since: list[str]) -> None:
    assert named_by(store) == ALL
    for name in since:
        assert store.read(f"{FOLDER}/{ASIDE}-after/{name}") == rows_of(name)
        assert store.read(f"{FOLDER}/{name}") is None


def killed_at(number: int, fault: Fault) -> Plan:
    return lambda call: fault if call.number == number else Fault.NONE


def requests_of(store: MemoryStore, act: object) -> int:
    """Return how many requests ``act`` makes on a copy of the store."""
    counted = FaultyStore(copied(store), served)
    act(counted)  # type: ignore[operator]
    return sum(counted.requests.values())


def copied(store: MemoryStore) -> MemoryStore:
    other = MemoryStore()
    other.objects = dict(store.objects)
    return other


def test_rows_behind_a_checkpoint_are_moved_aside_and_nothing_is_deleted(store: MemoryStore) -> None:
    sink_in(store).rewind(decided_way(store))
    is_gone_back(store)
    assert folder_in(store).names(f"{ASIDE}/_log") == [*map(str, range(BATCHES))]
    assert set(map(str, range(BATCHES))) <= set(folder_in(store).names(LOG)), "older drivers find no number free"


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
def test_driver_that_is_killed_at_any_request_is_followed_by_another(store: MemoryStore, fault: Fault) -> None:
    way = decided_way(store)
    for number in range(1, requests_of(store, lambda hurt: sink_in(hurt).rewind(way)) + 1):
        tried = copied(store)
        with pytest.raises(Killed):
            sink_in(FaultyStore(tried, killed_at(number, fault))).rewind(way)
        named_by(tried)  # a reader finds each file that the log names
        sink_in(tried).rewind(way)
        is_gone_back(tried)


def test_driver_that_sleeps_at_any_request_changes_nothing_when_it_wakes_up(store: MemoryStore) -> None:
    """Meanwhile another one went back, and its query wrote on. So did an older driver that was in the middle of its batch."""
    way = decided_way(store)
    more = [f"day={way.number + 1}/part-0"]
    for number in range(1, requests_of(store, lambda slow: sink_in(slow).rewind(way)) + 1):
        tried = copied(store)

        def others_act(call: Call, at: int = number, tried: MemoryStore = tried) -> Fault:
            if call.number == at:
                write_batch(tried, BATCHES)
                sink_in(tried).rewind(way)
                write_batch(tried, way.number + 1)
            return Fault.NONE

        sink_in(FaultyStore(tried, others_act)).rewind(way)
        assert named_by(tried) == KEPT + more, f"woke up at request {number}"


def test_stored_name_of_a_file_decides_nothing_where_the_log_says_it(store: MemoryStore) -> None:
    """Whoever may write in the journal may have stored it."""
    for planted in (None, f"{store.uri}/{FOLDER}/{ALL[0]}", "elsewhere"):
        gone_back = sink_in(store).plan_rewind(saved_at(store, SAVED, planted), allowed=True)
        assert gone_back.newest_file == f"{store.uri}/{FOLDER}/{KEPT[-1]}"


def compacted_away(store: MemoryStore) -> None:
    """Let Spark compact the log, and delete the entries before."""
    lines = tuple(store.objects.pop(f"{FOLDER}/{LOG}/{batch}").decode().partition("\n")[2] for batch in range(BATCHES))
    write_batch(store, BATCHES, compacts=lines)


def test_stored_nothing_beside_a_log_that_has_files_is_refused(store: MemoryStore) -> None:
    """The entries of that time are gone. So nobody can tell what the sink held, and it is not emptied."""
    compacted_away(store)
    with pytest.raises(SinkMoved, match=r"lacks files that it had then.*checkpoints rewound"):
        sink_in(store).plan_rewind(saved_at(store, SAVED, None), allowed=True)


def test_stored_name_of_a_file_counts_where_spark_has_deleted_the_entries(store: MemoryStore) -> None:
    compacted_away(store)
    newest = f"{store.uri}/{FOLDER}/{KEPT[-1]}"
    gone_back = sink_in(store).plan_rewind(saved_at(store, SAVED, newest), allowed=True)
    way = way_back(gone_back, sink_in(store).next_number(BATCHES))
    sink_in(store).rewind(way)
    assert named_by(store) == KEPT
    with pytest.raises(SinkMoved, match="lacks files"):
        sink_in(store).plan_rewind(saved_at(store, SAVED, "elsewhere"), allowed=True)


def test_rows_are_put_back_and_what_was_written_since_is_moved_aside(store: MemoryStore) -> None:
    way = decided_way(store)
    sink_in(store).rewind(way)
    write_batch(store, way.number + 1)
    taken = back(store)
    assert taken
    assert taken.name == f"{ASIDE}-after"
    is_put_back(store, [f"day={way.number + 1}/part-0"])
    assert sink_in(store).plan_rewind(saved_at(store, 8, None), allowed=False).newest_file, (
        "the old checkpoint fits again"
    )


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
@pytest.mark.parametrize("writes", [True, False])
def test_rows_are_put_back_after_a_kill_at_any_request(store: MemoryStore, fault: Fault, writes: bool) -> None:
    way = decided_way(store)
    sink_in(store).rewind(way)
    since = [f"day={way.number + 1}/part-0"] if writes else []
    if writes:
        write_batch(store, way.number + 1)
    for number in range(1, requests_of(store, back) + 1):
        tried = copied(store)
        with pytest.raises(Killed):
            back(FaultyStore(tried, killed_at(number, fault)))
        named_by(tried)
        back(tried)
        is_put_back(tried, since)


def as_the_command(store: Store) -> None:
    """Put back, and clean up, as ``rewound --put-back`` does."""
    folder = folder_in(store)
    log, aside = FileSinkLog(folder), to_put_back(all_aside(folder))
    put_back(log, aside, "ann", AT)
    if not forget(log, aside):
        folder.delete_under(aside.name)


def test_command_that_is_typed_twice_at_once_loses_no_rows(store: MemoryStore) -> None:
    """The slow one is refused, or says "done", and both sides can still be put back."""
    way = decided_way(store)
    sink_in(store).rewind(way)
    write_batch(store, way.number + 1)
    sides = [ALL, [*KEPT, f"day={way.number + 1}/part-0"]]
    for number in range(1, requests_of(store, as_the_command) + 1):
        tried = copied(store)

        def another_acts(call: Call, at: int = number, tried: MemoryStore = tried) -> Fault:
            if call.number == at:
                as_the_command(tried)
            return Fault.NONE

        with suppress(Refused, Damaged, IndexError):
            as_the_command(FaultyStore(tried, another_acts))
        found = [named_by(tried)]
        as_the_command(tried)
        found.append(named_by(tried))
        assert sorted(found) == sorted(sides), f"woke up at request {number}"


def test_rows_that_are_written_after_a_killed_command_are_not_taken_for_those_before(store: MemoryStore) -> None:
    """The folder of the killed one is named, and what it holds can be put back."""
    way = decided_way(store)
    sink_in(store).rewind(way)
    write_batch(store, way.number + 1)
    back(store)
    newest = FileSinkLog(folder_in(store)).newest_batch()
    write_batch(store, newest + 1)
    before = dict(store.objects)
    with pytest.raises(Refused, match=f"If {ASIDE} is still there, first put {ASIDE}-after back, or delete it"):
        back(store)
    assert store.objects == before
    put_back(FileSinkLog(folder_in(store)), asides(store)[f"{ASIDE}-after"], "ann", AT)
    assert named_by(store) == [*KEPT, f"day={way.number + 1}/part-0"]


def test_lost_answer_is_no_lost_file(store: MemoryStore) -> None:
    way = decided_way(store)
    for number in range(1, requests_of(store, lambda hurt: sink_in(hurt).rewind(way)) + 1):
        tried = copied(store)
        hurt = FaultyStore(tried, killed_at(number, Fault.LOST))
        try:
            sink_in(hurt).rewind(way)
        except StoreUnavailable:
            sink_in(tried).rewind(way)
        is_gone_back(tried)


def test_file_that_somebody_deleted_is_not_put_back_and_nothing_is_changed(store: MemoryStore) -> None:
    sink_in(store).rewind(decided_way(store))
    store.delete([f"{FOLDER}/{ASIDE}/{TAKEN[0]}"])
    before = dict(store.objects)
    with pytest.raises(Damaged, match=f"{TAKEN[0]} lies neither there nor in {ASIDE}"):
        back(store)
    assert store.objects == before


def test_way_back_that_has_only_begun_is_not_put_back(store: MemoryStore) -> None:
    way = decided_way(store)
    with pytest.raises(Killed):
        sink_in(
            FaultyStore(
                store,
                lambda call: Fault.KILLED_AFTER if "_manifest" in call.key and call.kind == "create" else Fault.NONE,
            )
        ).rewind(way)
    with pytest.raises(Refused, match="has begun to go back"):
        back(store)


@pytest.mark.parametrize(
    "name", ["../secret", "%2e%2e/secret", "_spark_metadata/3", "%5fspark_metadata/3", ".hidden", "_rewound-1-x/y"]
)
def test_planted_manifest_moves_no_file_from_elsewhere(store: MemoryStore, name: str) -> None:
    store.overwrite("secret", b"of others")
    way = decided_way(store)
    sink_in(store).rewind(way)
    (aside,) = all_aside(folder_in(store))
    manifest = aside.manifest.encoded.replace(TAKEN[0], name)
    store.overwrite(f"{FOLDER}/{ASIDE}/_manifest.json", manifest.encode())
    before = dict(store.objects)
    with pytest.raises(Damaged):
        sink_in(store).rewind(way)
    assert store.objects == before


def test_file_of_the_sink_that_lies_elsewhere_is_not_moved(store: MemoryStore) -> None:
    """Whoever changed the log may have named it."""
    store.overwrite("secret", b"of others")
    entry = store.objects[f"{FOLDER}/{LOG}/7"].replace(f"{FOLDER}/day=7/part-0".encode(), b"secret")
    store.overwrite(f"{FOLDER}/{LOG}/7", entry)
    way, before = decided_way(store), dict(store.objects)
    with pytest.raises(Damaged, match="is no data file of the sink"):
        sink_in(store).rewind(way)
    assert store.objects == before


# -- several ways back, and other intervals ------------------------------------------------------------------------------


def went_back_twice(store: MemoryStore) -> None:
    """To batch 4, one batch more, and then to batch 2."""
    way = decided_way(store)
    sink_in(store).rewind(way)
    write_batch(store, way.number + 1)
    sink = sink_in(store)
    again = sink.plan_rewind(saved_at(store, 2, None), allowed=True)
    sink.rewind(way_back(again, sink.next_number(way.number + 1), "query/rows/3-abc"))


def asides(store: Store) -> dict[str, Aside]:
    return {aside.name: aside for aside in all_aside(folder_in(store))}


def test_what_was_taken_out_first_is_put_back_last(store: MemoryStore) -> None:
    went_back_twice(store)
    before = dict(store.objects)
    log = FileSinkLog(folder_in(store))
    with pytest.raises(Damaged, match="_rewound-3-abc holds it: put that back first"):
        put_back(log, asides(store)[ASIDE], "ann", AT)
    assert store.objects == before
    put_back(log, asides(store)["_rewound-3-abc"], "ann", AT)
    assert not forget(log, asides(store)["_rewound-3-abc"])
    put_back(log, asides(store)[ASIDE], "ann", AT)
    assert named_by(store) == ALL


def test_what_an_older_folder_needs_is_not_deleted(store: MemoryStore) -> None:
    went_back_twice(store)
    log = FileSinkLog(folder_in(store))
    with pytest.raises(Refused, match=f"{ASIDE} was taken out before"):
        remove(log, asides(store)["_rewound-3-abc"])
    for name in (ASIDE, "_rewound-3-abc"):
        remove(log, asides(store)[name])
    assert named_by(store) == ALL[:3]
    assert not asides(store)


def test_query_that_is_started_before_the_log_is_cut_ends_the_command(store: MemoryStore) -> None:
    way = decided_way(store)
    sink_in(store).rewind(way)
    log = FileSinkLog(folder_in(store))

    def started() -> None:
        raise Refused("it was started")

    with pytest.raises(Refused, match="it was started"):
        put_back(log, asides(store)[ASIDE], "ann", AT, started)
    assert named_by(store) == KEPT
    sink_in(store).rewind(way)
    is_gone_back(store)


def test_driver_that_wakes_up_behind_a_person_leaves_the_rows_where_they_are(store: MemoryStore) -> None:
    """It has looked whether there is a manifest, and reads it again."""
    sink_in(store).rewind(decided_way(store))
    log, sleeper = FileSinkLog(folder_in(store)), asides(store)[ASIDE]
    put_back(log, sleeper, "ann", AT)
    move_aside(log, sleeper)
    assert named_by(store) == ALL


@pytest.mark.parametrize("torn", [False, True], ids=["moved", "killed between copy and deletion"])
def test_driver_that_sleeps_at_any_request_loses_no_file_that_a_person_puts_back(
    store: MemoryStore, torn: bool
) -> None:
    """It repeats the way of a driver that has died."""
    way = decided_way(store)
    sink_in(store).rewind(way)
    if torn:
        store.overwrite(f"{FOLDER}/{TAKEN[0]}", rows_of(TAKEN[0]))
    for number in range(1, requests_of(store, lambda slow: sink_in(slow).rewind(way)) + 1):
        tried = copied(store)

        def person_acts(call: Call, at: int = number, tried: MemoryStore = tried) -> Fault:
            if call.number == at:
                back(tried)
                forget(FileSinkLog(folder_in(tried)), asides(tried)[ASIDE])
            return Fault.NONE

        with suppress(Damaged):  # its manifest is gone
            sink_in(FaultyStore(tried, person_acts)).rewind(way)
        there = {listed.key for listed in tried.list("")}
        lost = [name for name in ALL if not any(key.endswith(f"/{name}") for key in there)]
        assert not lost, f"woke up at request {number}"
        if ASIDE in asides(tried):
            back(tried)
            assert set(named_by(tried)) <= {
                key.removeprefix(f"{FOLDER}/") for key in (one.key for one in tried.list(""))
            }


def test_file_that_no_manifest_names_stays_in_its_folder(store: MemoryStore) -> None:
    sink_in(store).rewind(decided_way(store))
    store.overwrite(f"{FOLDER}/{ASIDE}/day=9/part-0", b"rows")
    log = FileSinkLog(folder_in(store))
    put_back(log, asides(store)[ASIDE], "ann", AT)
    assert forget(log, asides(store)[ASIDE]) == [f"{ASIDE}/day=9/part-0"]
    assert store.read(f"{FOLDER}/{ASIDE}/day=9/part-0") == b"rows"


def test_manifest_is_put_once(store: MemoryStore) -> None:
    """A driver that sleeps while it puts one does not replace that of another."""
    way = decided_way(store)

    def faster(call: Call) -> Fault:
        if call.kind == "create" and call.key.endswith("_manifest.json"):
            write_batch(store, BATCHES)
            sink_in(store).rewind(way)
        return Fault.NONE

    sink_in(FaultyStore(store, faster)).rewind(way)
    assert named_by(store) == KEPT
    back(store)
    assert named_by(store) == [*ALL, f"day={BATCHES}/part-0"]


@pytest.mark.parametrize("interval", [3, 7, 10, 20])
def test_log_is_cut_where_spark_finds_the_compacted_entries(store: MemoryStore, interval: int) -> None:
    """Also if the interval was another one when the way back was decided."""
    way = decided_way(store)
    FileSinkLog(folder_in(store), interval).keep([], way.number)
    compacted = sorted(int(name.partition(".")[0]) for name in folder_in(store).names(LOG) if "compact" in name)
    distance = compacted[1] - compacted[0]
    assert compacted[1] == way.number
    assert (way.number + 1) % distance == 0
    assert compacted[0] > BATCHES


def test_interval_is_that_of_the_log(store: MemoryStore) -> None:
    log = FileSinkLog(folder_in(store))
    assert log.interval == 10
    for batch in (13, 20):
        write_batch(store, batch, compacts=("{}",))
    assert (log.interval, log.next_number()) == (7, 34)


def test_files_that_spark_has_dropped_by_their_age_are_not_missing(store: MemoryStore) -> None:
    """With the option "retention" of the sink, a compaction drops the oldest."""
    lines = [store.objects[f"{FOLDER}/{LOG}/{batch}"].decode().partition("\n")[2] for batch in range(BATCHES)]
    write_batch(store, BATCHES, compacts=tuple(lines[2:]))
    gone_back = sink_in(store).plan_rewind(saved_at(store, SAVED, None), allowed=True)
    sink_in(store).rewind(way_back(gone_back, 39))
    assert named_by(store) == KEPT[2:]
