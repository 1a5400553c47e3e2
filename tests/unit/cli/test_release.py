"""``release``: a query goes on without this package, in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest

from airflow_checkpoint_provider.coordinator import releasing
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.location.fence import FenceEntry, fence, newest_batch
from airflow_checkpoint_provider.location.files import Location, location_at
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.keys import location_path
from airflow_checkpoint_provider.storage import LocalStore, open_store
from tests.support.acting import Job
from tests.support.faults import Killed
from tests.unit.cli.conftest import FLIGHTS, Command

UID, PATH = "clicks", location_path("clicks", 1, "a")
STORES = b'v1\n{"stateStoreInfo":[{"storeName":"default","numPartitions":1}]}'
NEEDED = (
    *("metadata", "offsets/6", "offsets/7", "commits/6", "sources/0/0"),
    *("state/0/_metadata/metadata", "state/0/0/7.snapshot"),
)
STATE = "state/0/0/8.delta"  # of batch 7


def written(location: Location, *files: str) -> Location:
    for file in files:
        body = STORES if file.endswith("_metadata/metadata") else b'v1\n{"batchWatermarkMs":0}\n{"logOffset":0}'
        location.store.overwrite(location.key_of(file), body)
    return location


def elsewhere(folder: Path) -> Location:
    return location_at(open_store(str(folder)), str(folder))


def located(job: Job) -> Location:
    """Return the location of a query that is in the middle of batch 7."""
    command = c.LocateQuery(uid=UID, path=PATH, taken_from=None, begun=7, committed=6, epoch=1)
    job.coordinator.journal.append(command)
    return written(own(job), *NEEDED)


def own(job: Job) -> Location:
    return Location(job.store, job.keys.file_set(PATH))


def test_query_goes_on_in_a_copy_of_its_newest_location(job: Job, tmp_path: Path, checkpoints: Command) -> None:
    located(job)
    job.end("failed")
    done = checkpoints("release", "orders", UID, "--to", str(tmp_path / "new"), "--yes", "-o", "json")
    to = f"file://{tmp_path}/new"
    assert (done.code, json.loads(done.out)) == (
        0,
        {"job": "orders", "query": "clicks", "location": to, "next_batch": 7},
    )
    assert set(elsewhere(tmp_path / "new").sizes()) == set(NEEDED)
    assert newest_batch(own(job)) == (7, True)
    released = job.state.released_query(UID)
    assert released
    assert (released.to, released.begun, released.committed) == (to, 7, 6)
    assert job.state.queries == ()
    assert job.state.locations() == {PATH}


def test_release_given_again_fetches_what_an_older_driver_has_written_since(
    job: Job, tmp_path: Path, checkpoints: Command
) -> None:
    located(job)
    job.end("failed")
    command = ("release", "orders", UID, "--to", str(tmp_path / "new"), "--yes")
    assert checkpoints(*command).code == 0
    written(own(job), STATE)
    again = checkpoints(*command)
    assert (again.code, again.lines[0]) == (
        0,
        f"query 'clicks' of orders was already released to file://{tmp_path}/new; this only fetches the state that an older driver has written since",
    )
    assert elsewhere(tmp_path / "new").read(STATE)
    other = checkpoints("release", "orders", UID, "--to", str(tmp_path / "other"), "--yes")
    assert other.code == 3
    assert f"was released to file://{tmp_path}/new" in other.err


def test_release_of_a_job_whose_runs_have_their_own_histories_says_so(
    lake: LocalStore, tmp_path: Path, checkpoints: Command
) -> None:
    done = checkpoints("release", FLIGHTS, UID, "--to", str(tmp_path / "new"), "--yes")
    assert done.code == 4
    assert f"each run of '{FLIGHTS}' has a history of its own. Only a job with scope=\"job\"" in done.err
    Job(lake, "tables", item="a").start()
    done = checkpoints("release", "tables", UID, "--to", str(tmp_path / "new"), "--yes")
    assert "each item of 'tables' has a history of its own. Name the item: --item=ITEM" in done.err


def test_release_with_dry_run_changes_nothing(job: Job, tmp_path: Path, checkpoints: Command) -> None:
    located(job)
    job.end("failed")
    before = job.state.n
    done = checkpoints("release", "orders", UID, "--to", str(tmp_path / "new"), "--dry-run")
    assert done.lines == [
        f"RELEASE query 'clicks' of orders: it continues with batch 7 in file://{tmp_path}/new, without this package",
        "from then on, start_query refuses this query unless adopt= names that folder",
        "nothing was changed (--dry-run)",
    ]
    assert (job.state.n, newest_batch(own(job)), list(tmp_path.glob("new/*"))) == (before, (7, False), [])


def test_query_that_was_fenced_and_never_started_goes_on(job: Job, tmp_path: Path, checkpoints: Command) -> None:
    """As after a kill after the fence. Without the adopted location, nobody knows what to copy."""
    job.end("failed")
    old = written(elsewhere(tmp_path / "old"), *NEEDED)
    command = ("release", "orders", UID, "--to", str(tmp_path / "new"), "--yes")
    unknown = checkpoints(*command)
    assert unknown.code == 4
    assert "name that with --adopted" in unknown.err
    runs = checkpoints(*command, "--adopted", old.uri)
    assert runs.code == 3
    assert "not fenced: the query can run there" in runs.err
    fence(old, FenceEntry(job.state.incarnation, UID, "nonce", "attempt 1 of orders"), lambda: None)
    assert checkpoints(*command, "--adopted", old.uri).code == 0
    assert set(elsewhere(tmp_path / "new").sizes()) == set(NEEDED)
    assert newest_batch(old) == (7, True)


def test_adopted_location_that_only_the_journal_names_is_not_read(
    job: Job, tmp_path: Path, checkpoints: Command
) -> None:
    old = written(elsewhere(tmp_path / "old"), *NEEDED)
    command = c.LocateQuery(uid=UID, path=PATH, taken_from=None, begun=7, committed=6, epoch=1, adopted=old.uri)
    job.coordinator.journal.append(command)
    written(own(job), *(name for name in NEEDED if not name.startswith("state/")))
    job.end("failed")
    release = ("release", "orders", UID, "--to", str(tmp_path / "new"), "--yes")
    refused = checkpoints(*release)
    assert refused.code == 3
    assert f"or --adopted {old.uri} for a release" in refused.err
    assert not (tmp_path / "new").exists()
    assert checkpoints(*release, "--adopted", old.uri).code == 0
    assert set(elsewhere(tmp_path / "new").sizes()) == set(NEEDED)


def test_location_that_another_query_has_fenced_is_refused(job: Job, tmp_path: Path, checkpoints: Command) -> None:
    job.end("failed")
    old = written(elsewhere(tmp_path / "old"), *NEEDED)
    fence(old, FenceEntry("another", UID, "nonce", "attempt 1 of another"), lambda: None)
    refused = checkpoints("release", "orders", UID, "--to", str(tmp_path / "new"), "--adopted", old.uri, "--yes")
    assert refused.code == 3
    assert "fenced by attempt 1 of another" in refused.err


def batches_are_missing(job: Job, _: Path) -> None:
    own(job).store.delete([own(job).key_of("offsets/7")])


def goes_back(job: Job, _: Path) -> None:
    """Its next attempt was killed after the entry."""
    path = location_path(UID, 1, "b")
    command = c.LocateQuery(
        uid=UID, path=path, taken_from=PATH, begun=7, committed=6, epoch=1, gone_back=GoneBack(batch=3)
    )
    job.coordinator.journal.append(command)
    written(Location(job.store, job.keys.file_set(path)), *NEEDED)


def folder_is_used(_: Job, folder: Path) -> None:
    written(elsewhere(folder / "new"), "metadata")


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (batches_are_missing, "lacks batches that were there"),
        (goes_back, "Start the job once, then release the query"),
        (folder_is_used, "is not empty"),
    ],
)
def test_what_cannot_be_released_is_refused_before_anything_is_changed(
    job: Job, tmp_path: Path, checkpoints: Command, happens: Callable[[Job, Path], None], said: str
) -> None:
    located(job)
    happens(job, tmp_path)
    job.end("failed")
    refused = checkpoints("release", "orders", UID, "--to", str(tmp_path / "new"), "--yes")
    assert refused.code != 0
    assert said in refused.err
    assert not newest_batch(own(job))[1]


def test_running_job_keeps_its_query(job: Job, tmp_path: Path, checkpoints: Command) -> None:
    located(job)
    refused = checkpoints("release", "orders", UID, "--to", str(tmp_path / "new"), "--yes")
    assert refused.code == 3
    assert " stop orders`" in refused.err
    assert newest_batch(own(job)) == (7, False)


def test_driver_that_was_replaced_and_still_lives_keeps_its_query(
    job: Job, tmp_path: Path, checkpoints: Command
) -> None:
    """It may finish its batch in the sink after the state was copied."""
    located(job)
    job.beat()
    job.plan(try_number=2)
    refused = checkpoints("release", "orders", UID, "--to", str(tmp_path / "new"), "--yes")
    assert refused.code == 3
    assert "the driver of attempt 1 of orders still lives" in refused.err


def test_job_without_a_shared_history_has_no_queries(tmp_path: Path, checkpoints: Command) -> None:
    (tmp_path / "lake").mkdir()
    refused = checkpoints("release", "nobody", UID, "--to", str(tmp_path / "new"), "--yes")
    assert refused.code == 4
    assert "no job 'nobody' with streaming queries" in refused.err


@pytest.mark.parametrize("behind", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("place", "name"),
    [(releasing, "fence"), (releasing, "copy_position"), (Journal, "append"), (releasing, "fetch_state")],
)
def test_release_that_is_killed_is_given_again(
    job: Job, tmp_path: Path, place: object, name: str, *, behind: bool
) -> None:
    """With another folder, if the copy in the first one has not counted yet."""
    located(job)
    job.end("failed")
    original = getattr(place, name)

    def killed(*arguments: object) -> NoReturn:
        if behind:
            original(*arguments)
        raise Killed

    first = str(tmp_path / "first")
    with mock.patch.object(place, name, killed), pytest.raises(Killed):
        releasing.Release(job.coordinator, UID, first).run("ann")
    released = job.state.released_query(UID)
    folder = first if released else str(tmp_path / "second")
    releasing.Release(job.coordinator, UID, folder).run("ann")
    assert set(elsewhere(Path(folder)).sizes()) == set(NEEDED)
    assert newest_batch(own(job)) == (7, True)
