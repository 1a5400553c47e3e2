"""A savepoint at its target: publish, open, claim and dispose. Runs anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from airflow_checkpoint_provider.coordinator.files import export_pairs, import_state
from airflow_checkpoint_provider.coordinator.savepoint_target import (
    DISPOSAL,
    ClaimLock,
    DisposedStub,
    check_target,
    claim_mode,
    delete_own,
    delete_savepoint,
    open_savepoint,
    put_claim,
)
from airflow_checkpoint_provider.errors import (
    AlreadyClaimed,
    CheckpointError,
    CheckpointNotFound,
    Damaged,
    FormatTooNew,
    InvalidConfig,
    NotItsClaim,
    OtherSavepoint,
    SavepointDisposed,
    StoreDenied,
)
from airflow_checkpoint_provider.protocol.keys import Keys, SavepointPointer, pointer_of
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, StateSnapshot
from airflow_checkpoint_provider.protocol.records import Record, canonical
from airflow_checkpoint_provider.storage import (
    LocalStore,
    MemoryStore,
    S3Store,
    open_store,
)
from airflow_checkpoint_provider.storage.base import LARGEST
from tests.support.acknowledgements import file_set, stage, take, value
from tests.support.faults import Fault, FaultyStore
from tests.support.histories import at
from tests.support.planted import plant_3_gib
from tests.support.saved import MINE, OTHER, Saved, memory


@pytest.fixture
def saved() -> Saved:
    return Saved(memory())


@pytest.fixture(params=["memory", "local", "s3"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    if request.param == "s3":
        return Saved(S3Store(request.getfixturevalue("bucket"), "savepoints", request.getfixturevalue("s3").settings()))
    return Saved(LocalStore(tmp_path / "savepoints") if request.param == "local" else memory())


# -- lifecycle -----------------------------------------------------------------------------------------------------------


def test_savepoint_is_published_opened_and_disposed_of(anywhere: Saved) -> None:
    assert anywhere.is_() == "none"
    anywhere.publish()
    opened = anywhere.open()
    assert (opened.seal, opened.digest) == (
        anywhere.coordinator.read_seal(anywhere.checkpoint),
        anywhere.checkpoint.digest,
    )
    assert (opened.keys.prefix, opened.verify(), opened.bytes) == ("savepoint-flights.delays-1-9f3c", 2, 38)
    anywhere.target.overwrite(f"{anywhere.pointer.name}/state/s1/1-n0nce/.part-0.crc", b"hidden")
    anywhere.dispose()
    assert anywhere.left() == ["_claimed", "_metadata"]
    assert anywhere.target.read(f"{anywhere.pointer.name}/state/s1/1-n0nce/.part-0.crc") is None
    with pytest.raises(SavepointDisposed, match=rf"was disposed of at {at(6)} by ann; name another") as raised:
        anywhere.open()
    assert raised.value.about == {"at": at(6), "by": "ann"}
    anywhere.publish()
    assert anywhere.is_() == "disposed"


def test_savepoint_is_complete_without_its_history(saved: Saved) -> None:
    saved.publish()
    assert isinstance(saved.history, MemoryStore)
    saved.history.objects.clear()
    assert saved.is_() == "whole"


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree], ids=["moved", "copied"])
def test_moved_or_copied_savepoint_is_opened(tmp_path: Path, how: Callable[[str, str], object]) -> None:
    saved = Saved(LocalStore(tmp_path / "savepoints"))
    saved.publish()
    there = tmp_path / "elsewhere" / "before {price} change*[1]"
    there.parent.mkdir()
    how(f"{saved.target.uri.removeprefix('file://')}/{saved.pointer.name}", str(there))
    for text in (f"file://{there}", f"{there}/", f"{there}/_metadata"):
        pointer = pointer_of(text)
        assert isinstance(pointer, SavepointPointer)
        assert open_savepoint(pointer, saved.history).verify() == 2


# -- opening -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (None, CheckpointNotFound, "holds no _metadata"),
        (b"", Damaged, "is not JSON"),
        (b"half of a se", Damaged, "is not JSON"),
        (b"[]", Damaged, "not an object with a version"),
        (b'{"v":1}', Damaged, "Seal cannot be read"),
        (b'{"stub":true,"v":1}', Damaged, "Stub cannot be read"),
        (b'{"v":2}', FormatTooNew, "has format 2"),
        (b'{"stub":true,"v":2}', FormatTooNew, "has format 2"),
    ],
)
def test_open_of_an_invalid_metadata_file_is_refused(
    saved: Saved, body: bytes | None, error: type[CheckpointError], says: str
) -> None:
    if body is not None:
        saved.target.overwrite(saved.pointer.metadata, body)
    with pytest.raises(error, match=says) as raised:
        saved.open()
    assert raised.type is error


def test_denied_open_is_not_taken_for_absent(anywhere: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    anywhere.publish()
    faulty = FaultyStore(anywhere.target, lambda _: Fault.DENIED)
    monkeypatch.setattr(anywhere.target, "beside", lambda _, **limits: faulty)
    with pytest.raises(StoreDenied):
        anywhere.open()


@pytest.mark.parametrize(
    ("hurt", "says"), [(None, "is missing"), (b"short", "has 5 bytes, 19 were acknowledged")], ids=["missing", "short"]
)
def test_verify_finds_a_missing_or_short_file(saved: Saved, hurt: bytes | None, says: str) -> None:
    saved.publish()
    key = f"{saved.pointer.keys.file_set('state/s1/1-n0nce')}/part-00001.zstd.parquet"
    saved.target.delete([key])
    if hurt:
        saved.target.overwrite(key, hurt)
    with pytest.raises(Damaged, match=rf"is not whole: .*part-00001.* {says}.* name another"):
        saved.open().verify()


def test_store_of_the_target_is_opened_beside_the_given_store(anywhere: Saved) -> None:
    anywhere.publish()
    assert anywhere.target.beside(anywhere.pointer.root).uri == anywhere.target.uri
    assert open_savepoint(anywhere.pointer, anywhere.target).store.uri == anywhere.pointer.root


# -- publishing ----------------------------------------------------------------------------------------------------------


def test_second_publication_changes_nothing(saved: Saved) -> None:
    saved.publish()
    before = saved.target.read(saved.pointer.metadata)
    saved.publish()
    assert saved.target.read(saved.pointer.metadata) == before


def test_savepoint_without_its_seal_cannot_be_published(saved: Saved) -> None:
    seal = saved.history.read(saved.seal_key)
    assert seal
    saved.history.delete([saved.seal_key])
    with pytest.raises(Damaged, match=r"_metadata is missing, so .* cannot be published"):
        saved.publish()
    saved.target.overwrite(saved.pointer.metadata, seal)
    saved.publish()
    assert saved.is_() == "whole"
    saved.dispose()
    saved.publish()
    assert saved.is_() == "disposed"


def test_changed_seal_is_not_published(saved: Saved) -> None:
    saved.history.overwrite(saved.seal_key, b'{"v":1}')
    with pytest.raises(Damaged, match="not what the journal says"):
        saved.publish()
    assert saved.is_() == "none"


def test_publication_does_not_replace_another_savepoint(saved: Saved) -> None:
    take(saved.coordinator)
    another = saved.history.read(saved.coordinator.keys.seal(2))
    assert another
    saved.target.overwrite(saved.pointer.metadata, another)
    with pytest.raises(OtherSavepoint, match="another savepoint; nothing was changed"):
        saved.publish()
    assert saved.target.read(saved.pointer.metadata) == another


# -- claiming ------------------------------------------------------------------------------------------------------------


def test_owner_may_claim_again_and_others_are_refused(anywhere: Saved) -> None:
    anywhere.publish()
    anywhere.claim(MINE)
    anywhere.claim(MINE)
    put_claim(anywhere.target, anywhere.pointer, MINE, "a retry", at(9))
    with pytest.raises(AlreadyClaimed, match=rf"for another history at {at(5)} by who claims for {MINE}") as raised:
        anywhere.claim(OTHER)
    assert (raised.value.about["owner"], raised.value.permanent) == (MINE, True)
    with pytest.raises(AlreadyClaimed, match="for another history"):
        anywhere.dispose()
    assert anywhere.is_() == "whole"


def test_history_with_the_same_folder_on_another_host_is_another_owner(saved: Saved) -> None:
    saved.publish()
    here, there = ((saved.target, saved.pointer, MINE, "ann", at(9), name) for name in ("1ncarnation", "another one"))
    put_claim(*here)
    put_claim(*here)
    for change in (put_claim, delete_savepoint):
        with pytest.raises(AlreadyClaimed, match="for another history"):
            change(*there)
    with pytest.raises(NotItsClaim, match="does not say so"):
        delete_own(*there)
    assert saved.is_() == "whole"
    delete_own(*here)
    assert saved.is_() == "disposed"
    delete_own(*here)


def test_owner_is_told_that_its_savepoint_is_not_there(saved: Saved) -> None:
    """Its folder may not be mounted: otherwise nobody would delete it later, and nobody would know."""
    with pytest.raises(
        NotItsClaim, match=f"nothing is at {saved.pointer}.* or its folder is not mounted here.*dispose {saved.pointer}"
    ):
        delete_own(saved.target, saved.pointer, MINE, "retention", at(7))
    assert all(key.startswith("state/") for key in saved.left()), "and nothing was written there"


def test_disposed_savepoint_cannot_be_claimed(saved: Saved) -> None:
    saved.publish()
    saved.dispose()
    with pytest.raises(AlreadyClaimed, match="to be disposed of"):
        saved.claim()


def test_claiming_history_may_delete_the_savepoint(saved: Saved) -> None:
    saved.publish()
    saved.claim(MINE)
    delete_savepoint(saved.target, saved.pointer, MINE, "retention", at(7))
    assert saved.is_() == "disposed"


def test_one_of_several_concurrent_claims_wins(anywhere: Saved) -> None:
    anywhere.publish()
    for _ in range(5):
        anywhere.target.delete([anywhere.pointer.claim])
        together = Barrier(4)

        def claim(owner: str, together: Barrier = together) -> str | None:
            together.wait(10)
            try:
                anywhere.claim(owner)
            except AlreadyClaimed:
                return None
            return owner

        with ThreadPoolExecutor(4) as threads:
            won = [owner for owner in threads.map(claim, ["a", "b", "c", DISPOSAL]) if owner]
        assert len(won) == 1
        anywhere.claim(won[0])


@pytest.mark.parametrize("body", [b"", b"{}", b'{"v":1}'])
def test_unreadable_claim_is_damaged(saved: Saved, body: bytes) -> None:
    saved.publish()
    saved.target.overwrite(saved.pointer.claim, body)
    with pytest.raises(Damaged):
        saved.claim()
    with pytest.raises(Damaged):
        saved.dispose()
    assert saved.is_() == "whole"


# -- disposing -----------------------------------------------------------------------------------------------------------


def test_second_disposal_keeps_the_first_owner(saved: Saved) -> None:
    saved.publish()
    saved.dispose(by="ann")
    saved.target.overwrite(f"{saved.pointer.name}/state/s1/1-n0nce/late", b"of a driver that slept")
    saved.dispose(by="bob")
    assert saved.left() == ["_claimed", "_metadata"]
    with pytest.raises(SavepointDisposed, match="by ann"):
        saved.open()


def test_disposed_savepoint_is_never_published(saved: Saved) -> None:
    saved.dispose()
    saved.publish()
    assert (saved.is_(), saved.left()) == ("disposed", ["_claimed", "_metadata"])


def test_damaged_savepoint_can_be_disposed_of_and_a_newer_one_cannot(saved: Saved) -> None:
    saved.target.overwrite(saved.pointer.metadata, b'{"v":2}')
    with pytest.raises(FormatTooNew):
        saved.dispose()
    assert len(saved.left()) == 4
    saved.target.overwrite(saved.pointer.metadata, b"half of a se")
    saved.dispose()
    assert saved.is_() == "disposed"


def test_disposal_deletes_nothing_beside_the_savepoint(saved: Saved) -> None:
    saved.publish()
    beside = [f"{saved.pointer.name}0/_metadata", "other/_metadata", "_metadata"]
    for key in beside:
        saved.target.overwrite(key, b"x")
    saved.dispose()
    assert [listed.key for listed in saved.target.list("") if listed.key in beside] == sorted(beside)


# -- words and names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["no_claim", "claim"])
def test_claim_mode_is_accepted(mode: str) -> None:
    assert claim_mode(mode) == mode


@pytest.mark.parametrize("mode", ["legacy", "NO_CLAIM", "", "none"])
def test_other_claim_modes_are_refused(mode: str) -> None:
    says = "nobody would know when" if mode == "legacy" else "claim_mode="
    with pytest.raises(InvalidConfig, match=says) as raised:
        claim_mode(mode)
    assert '"no_claim"' in str(raised.value)
    assert '"claim"' in str(raised.value)


# -- copying -------------------------------------------------------------------------------------------------------------

HERE, THERE = Keys("jobs/orders/job"), Keys("savepoint-orders-41-9f3c")


def test_export_pairs_name_each_file_set_once() -> None:
    shared = file_set("clean", 3, files=1)
    states = [
        stage("clean", 1, made_of=shared),
        value("rows", 1, 7),
        stage("again", 1, made_of=shared),
        stage("a b", 1),
    ]
    assert export_pairs(states, HERE, THERE) == tuple(
        (f"{HERE.prefix}/state/{name}", f"{THERE.prefix}/state/{name}")
        for name in (
            "a~20b/1-n0nce/part-00000.zstd.parquet",
            "a~20b/1-n0nce/part-00001.zstd.parquet",
            "clean/3-n0nce/part-00000.zstd.parquet",
        )
    )


def test_imported_state_belongs_to_the_importing_attempt() -> None:
    old = replace(stage("totals", 41), file_sets=(file_set("totals", 3, "a"), file_set("totals", 4, "b", files=1)))
    nonces = iter(["x", "y", "z"])
    new, pairs = import_state(old, THERE, HERE, 7, lambda: next(nonces))
    assert [(copied.path, copied.origin, copied.files) for copied in new.file_sets] == [
        ("state/totals/7-x", "state/totals/3-a", old.file_sets[0].files),
        ("state/totals/7-y", "state/totals/4-b", old.file_sets[1].files),
    ]
    assert pairs == (
        (f"{THERE.prefix}/state/totals/3-a/part-00000.zstd.parquet", f"{HERE.prefix}/state/totals/7-x/part-00000.zstd.parquet"),
        (f"{THERE.prefix}/state/totals/3-a/part-00001.zstd.parquet", f"{HERE.prefix}/state/totals/7-x/part-00001.zstd.parquet"),
        (f"{THERE.prefix}/state/totals/4-b/part-00000.zstd.parquet", f"{HERE.prefix}/state/totals/7-y/part-00000.zstd.parquet"),
    )  # fmt: skip
    assert (new.stage, new.uid, new.rows, new.bytes) == (old.stage, old.uid, old.rows, old.bytes)
    assert (new.measures.checkpoint, new.measures.new_bytes, new.measures.work_s) == (0, old.bytes, 4320.0)


def test_imported_file_set_keeps_its_identity() -> None:
    """The reuse of a stage depends on the identity: its plan names the file sets that it was built on."""
    old = stage("clean", 1)
    once, _ = import_state(old, THERE, HERE, 7, lambda: "x")
    twice, _ = import_state(once, HERE, THERE, 9, lambda: "y")
    assert [state.file_sets[0].identity for state in (old, once, twice)] == ["state/clean/1-n0nce"] * 3
    assert StateSnapshot.from_json(twice.to_json()) == twice
    assert "origin" not in old.to_json()["file_sets"][0]


def test_value_needs_no_copy() -> None:
    assert import_state(value("rows", 1, 7), THERE, HERE, 7, lambda: "x")[1] == ()


def test_imported_state_keeps_the_measures_of_its_work() -> None:
    """The import drops the checkpoint id and the write time of the other history."""
    old = stage("clean", 7, made_of=file_set("clean", 3))
    new, _ = import_state(old, Keys("there"), Keys("here"), 1, lambda: "n")
    assert (
        (new.measures.barrier, new.measures.work_s)
        == (old.measures.barrier, old.measures.work_s)
        == ("stage 'clean'", 4320.0)
    )
    assert (new.measures.checkpoint, new.measures.sync_s) == (0, 0.0)
    assert new.measures.new_bytes == old.bytes


@pytest.mark.parametrize("body", [b"{", canonical({"v": 1}), canonical({"v": 1, "stub": True, "by": 7})])
def test_error_about_a_stored_savepoint_names_its_object(body: bytes) -> None:
    pointer = SavepointPointer.parse("memory://team-b/savepoint-orders-1-named")
    home = open_store("memory://team-a")
    open_store(pointer.root).overwrite(pointer.metadata, body)
    with pytest.raises(Damaged, match=f"^{pointer}/_metadata[: ]"):
        open_savepoint(pointer, home)


@pytest.mark.parametrize("read", [Seal, Acknowledgement, ClaimLock, DisposedStub])
def test_error_about_a_stored_record_names_its_object(read: type[Record]) -> None:
    with pytest.raises(Damaged, match=rf"^jobs/x: a stored {read.__name__} cannot be read: .*changed it"):
        read.from_bytes(canonical({"v": 1}), "jobs/x")


def test_target_below_a_link_is_taken_unless_it_lies_inside_of_a_savepoint(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    home, target = LocalStore(tmp_path / "link" / "home"), tmp_path / "link" / "savepoints"
    assert check_target(home, str(target)) == f"file://{target}"
    assert check_target(home, f"{home.uri}/savepoints") == f"{home.uri}/savepoints"
    saved = Saved(LocalStore(target))
    saved.publish()
    with pytest.raises(InvalidConfig, match="lies inside of the savepoint"):
        check_target(home, f"{saved.pointer}/below")


# -- objects that are too large to be read -------------------------------------------------------------------------------


@pytest.fixture
def on_disk(tmp_path: Path) -> Saved:
    saved = Saved(LocalStore(tmp_path / "savepoints"))
    saved.publish()
    return saved


def test_savepoint_with_a_planted_seal_is_damaged_and_can_be_disposed_of(on_disk: Saved) -> None:
    assert isinstance(on_disk.target, LocalStore)
    plant_3_gib(on_disk.target, on_disk.pointer.metadata)
    with pytest.raises(Damaged, match=f"_metadata has more than {LARGEST} bytes"):
        on_disk.open()
    with pytest.raises(InvalidConfig, match="lies inside of the savepoint"):
        check_target(on_disk.history, f"{on_disk.pointer}/below")
    on_disk.dispose()
    assert (on_disk.is_(), on_disk.left()) == ("disposed", ["_claimed", "_metadata"])


def test_savepoint_with_a_planted_claim_is_not_deleted(on_disk: Saved) -> None:
    assert isinstance(on_disk.target, LocalStore)
    plant_3_gib(on_disk.target, on_disk.pointer.claim)
    with pytest.raises(Damaged, match=f"_claimed has more than {LARGEST} bytes"):
        on_disk.dispose()
    assert on_disk.is_() == "whole"
