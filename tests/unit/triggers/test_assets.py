"""The events of an asset: one for each checkpoint, whatever happens to the triggerer meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_checkpoint_provider.assets import checkpoint_asset
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.hooks import checkpoint_storage, history
from airflow_checkpoint_provider.hooks.history import HistoryReader
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import SINK, StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkDetail
from airflow_checkpoint_provider.storage import Store, open_store
from airflow_checkpoint_provider.triggers import assets
from airflow_checkpoint_provider.triggers.assets import SENT, CompletedCheckpointTrigger
from tests.support.acting import Job
from tests.support.tasks import soon
from tests.support.waiting import wait_until

BOTH = ("checkpoint", "savepoint")


class AssetStore(dict[str, Any]):
    """Airflow's state store of an asset. ``failures``: how many more requests fail."""

    failures = 0

    async def aget(self, key: str) -> Any:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the API server does not answer")
        return json.loads(self[key]) if key in self else None

    async def aset(self, key: str, value: Any) -> None:
        self[key] = json.dumps(value)


@pytest.fixture
def kept() -> AssetStore:
    return AssetStore()


def watching(kept: AssetStore, kinds: Collection[str] = BOTH) -> AsyncIterator[TriggerEvent]:
    asset = checkpoint_asset("orders", kinds)
    path, arguments = asset.watchers[0].trigger.serialize()
    assert path == "airflow_checkpoint_provider.triggers.assets.CompletedCheckpointTrigger"
    trigger = CompletedCheckpointTrigger(**{**json.loads(json.dumps(arguments)), "poll_interval": 0.01})
    trigger.asset_state_store = kept  # type: ignore[assignment]
    return trigger.run()


def watched(kept: AssetStore, *acts: Callable[[], object], kinds: Collection[str] = BOTH) -> list[Any]:
    """Return the payloads of a trigger's events. Each of ``acts`` causes one; the first is called when the trigger has begun."""

    async def collect() -> list[Any]:
        events = watching(kept, kinds)
        found = []
        for act in acts:
            event = asyncio.ensure_future(anext(events))
            while SENT not in kept:
                await asyncio.sleep(0.01)
            act()
            found.append((await event).payload)
        return found

    return asyncio.run(asyncio.wait_for(collect(), 60))


def numbers(payloads: list[Any]) -> list[int]:
    return [payload["id"] for payload in payloads]


def test_each_checkpoint_from_now_on_is_an_event_with_pointer_and_size(job: Job, kept: AssetStore) -> None:
    job.take()
    first, second = watched(kept, job.save, job.take)
    place = job.checkpoint(2)
    history = {"job": "orders", "scope": "", "incarnation": "of orders"}
    assert first == {**history, "id": 2, "pointer": place.target, "kind": "savepoint", "bytes": place.bytes}
    pointer = str(job.coordinator.pointer(3))
    assert second == {**history, "id": 3, "pointer": pointer, "kind": "checkpoint", "bytes": job.checkpoint(3).bytes}
    assert place.bytes > 0


def test_other_kinds_are_no_events(job: Job, kept: AssetStore) -> None:
    def both() -> None:
        job.take()
        job.save()

    (event,) = watched(kept, both, kinds=("savepoint",))
    assert event["kind"] == "savepoint"


def test_savepoint_is_an_event_when_its_directory_can_be_opened(job: Job, kept: AssetStore) -> None:
    asks = Request(token="save", kind="savepoint", origin="task", folder=f"{job.store.uri}/savepoints")
    job.complete(job.coordinator.trigger(asks))
    assert numbers(watched(kept, job.take)) == [2]
    kept[SENT] = json.dumps({"incarnation": job.state.incarnation, "ids": [2]})
    assert numbers(watched(kept, lambda: publish_due(job.coordinator))) == [1]


def test_checkpoint_that_overtakes_an_older_one_hides_it_not(job: Job, kept: AssetStore) -> None:
    asks = Request(token="slow", kind="savepoint", origin="task", folder=f"{job.store.uri}/savepoints")
    slow = job.coordinator.trigger(asks)
    assert numbers(watched(kept, job.take)) == [slow + 1]
    kept[SENT] = json.dumps({"incarnation": job.state.incarnation, "ids": [slow + 1]})

    def complete() -> None:
        job.complete(slow)
        publish_due(job.coordinator)

    assert numbers(watched(kept, complete)) == [slow]


def test_checkpoint_of_a_time_without_triggerer_is_an_event(job: Job, kept: AssetStore) -> None:
    job.take()
    kept[SENT] = json.dumps({"incarnation": job.state.incarnation, "ids": [1]})
    job.save()
    assert numbers(watched(kept, lambda: None)) == [2]


def test_event_comes_again_if_the_triggerer_is_lost_before_the_next_poll(job: Job, kept: AssetStore) -> None:
    assert numbers(watched(kept, job.save)) == [1]
    assert numbers(watched(kept, lambda: None)) == [1]
    assert numbers(watched(kept, lambda: None, job.save)) == [1, 2]
    assert json.loads(kept[SENT])["ids"] == [1], "this trigger has polled again, and was lost after its second event"


def test_checkpoints_of_a_new_history_are_events(job: Job, kept: AssetStore) -> None:
    job.save()
    kept[SENT] = json.dumps({"incarnation": "of an older history", "ids": [1]})
    assert numbers(watched(kept, lambda: None)) == [1]


def test_job_may_start_after_its_trigger(store: Store, kept: AssetStore) -> None:
    job = Job(store)

    def start() -> None:
        job.start()
        job.save()

    assert numbers(watched(kept, start)) == [1]


def test_trigger_outlives_errors_of_airflow(job: Job, kept: AssetStore) -> None:
    kept.failures = 2
    assert numbers(watched(kept, job.save)) == [1]


# -- the connection or the history changes ---------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each poll find out whether something has changed."""
    monkeypatch.setattr(history, "SELDOM", 0.0)


def leads_to(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"conn_type": "checkpoint_storage", "extra": {"root": str(root)}}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(extra))


@pytest.mark.usefixtures("often")
def test_root_that_has_moved_is_watched_at_its_new_place(
    job: Job, kept: AssetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move() -> None:
        shutil.copytree(tmp_path / "checkpoints", tmp_path / "moved")
        moved = Job(open_store(str(tmp_path / "moved")))
        moved.coordinator.epoch = moved.state.last_epoch
        leads_to(tmp_path / "moved", monkeypatch)
        moved.take()

    job.take()
    (event,) = watched(kept, move)
    assert (event["id"], event["pointer"]) == (2, f"file://{tmp_path}/moved/jobs/orders/job/chk-2")


def begin_anew(job: Job, tmp_path: Path) -> Job:
    """Delete the history by hand, and launch the job again: each launch draws its own name of a new history."""
    shutil.rmtree(tmp_path / "checkpoints" / "jobs" / "orders")
    new = Job(job.store)
    new.incarnation = "another"
    new.start()
    return new


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("many", [1, 8], ids=["shorter", "longer"])
def test_history_that_was_deleted_and_begun_anew_is_watched(
    job: Job, kept: AssetStore, tmp_path: Path, many: int
) -> None:
    def anew() -> None:
        new = begin_anew(job, tmp_path)
        for _ in range(many):
            new.take()

    for _ in range(3):
        job.take()
    assert numbers(watched(kept, anew)) == [1]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("gone", ["connection", "history"])
def test_history_that_is_out_of_sight_for_a_moment_sends_no_event_twice(
    job: Job, kept: AssetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    folder, polls, poll = tmp_path / "checkpoints" / "jobs", list[State](), assets._poll

    def polled(reader: HistoryReader) -> State:
        polls.append(poll(reader))
        return polls[-1]

    monkeypatch.setattr(assets, "_poll", polled)

    def comes_back() -> None:
        with monkeypatch.context() as context:
            if gone == "connection":
                context.setattr(checkpoint_storage, "find_connection", lambda _: None)
            else:
                folder.rename(tmp_path / "away")
            wait_until(lambda: all(state.n < 0 for state in polls[-3:]), say="the history is still seen")
        if gone == "history":
            (tmp_path / "away").rename(folder)
        job.take()

    for _ in range(3):
        job.take()
    assert numbers(watched(kept, lambda: soon(comes_back))) == [4]
    assert json.loads(kept[SENT])["ids"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("scope", "item", "why"),
    [
        (None, None, "check the job id, or start the job first"),
        ("day-1", None, 'its runs have histories of their own: an asset watches only a job with scope="job"'),
        (None, "north", "has a history for each item under .*: write which one is meant as item="),
    ],
)
def test_asset_of_a_job_without_a_history_says_why_it_has_no_events(
    store: Store, kept: AssetStore, capsys: pytest.CaptureFixture[str], scope: str | None, item: str | None, why: str
) -> None:
    if scope or item:
        Job(store, scope=scope, item=item).start()

    def start() -> None:
        job = Job(store)
        job.start()
        job.take()

    assert numbers(watched(kept, start)) == [1]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "CKP248" in line]
    assert re.search(f"The asset of job 'orders' has no events yet: .*{why}", line)


# -- commits ---------------------------------------------------------------------------------------------------------------


def with_rows(job: Job, kind: str = "checkpoint") -> int:
    """Complete a checkpoint or a savepoint that holds rows of a sink. They are not committed yet."""
    folder = f"{job.store.uri}/savepoints" if kind == "savepoint" else ""
    number = job.coordinator.trigger(Request(token=f"{kind} with a sink", kind=kind, origin="task", folder=folder))
    sink = SinkDetail(format="files", target="/data/report", version=1)
    job.complete(number, StateSnapshot(uid="report", kind=SINK, run="day-1", sink=sink))
    publish_due(job.coordinator)
    return number


def seen(payloads: list[Any]) -> list[tuple[int, str]]:
    return [(payload["id"], payload["kind"]) for payload in payloads]


def test_commit_is_an_event_when_readers_see_the_rows(job: Job, kept: AssetStore) -> None:
    def publish() -> None:
        number = with_rows(job)
        job.take()
        job.coordinator.confirm_commits(number)

    job.take()
    assert seen(watched(kept, publish, kinds=("commit",))) == [(2, "commit")]


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_commit_after_the_event_of_its_checkpoint_is_an_event_of_its_own(job: Job, kept: AssetStore, kind: str) -> None:
    """Between the two lies a poll, which counts the first event as sent."""

    def confirm_later() -> None:
        wait_until(lambda: json.loads(kept[SENT])["ids"] == [1], say="the first event is not stored")
        job.coordinator.confirm_commits(1)

    events = watched(kept, lambda: with_rows(job, kind), lambda: soon(confirm_later), kinds=(kind, "commit"))
    assert seen(events) == [(1, kind), (1, "commit")]


def test_checkpoint_that_is_committed_before_the_next_poll_has_both_events(job: Job, kept: AssetStore) -> None:
    def both() -> None:
        job.coordinator.confirm_commits(with_rows(job))

    events = watched(kept, both, lambda: None, kinds=("checkpoint", "commit"))
    assert seen(events) == [(1, "checkpoint"), (1, "commit")]


def test_commit_of_a_time_without_triggerer_is_an_event(job: Job, kept: AssetStore) -> None:
    number = with_rows(job)
    kept[SENT] = json.dumps({"incarnation": job.state.incarnation, "ids": [number], "commits": []})
    job.coordinator.confirm_commits(number)
    assert seen(watched(kept, lambda: None, kinds=("checkpoint", "commit"))) == [(number, "commit")]


def test_events_that_an_earlier_version_has_stored_come_not_again(job: Job, kept: AssetStore) -> None:
    """It stored ids alone, so all of them count as sent: a run for each old commit would be worse. What is committed later is an event."""
    job.coordinator.confirm_commits(with_rows(job))
    later = with_rows(job, "savepoint")
    kept[SENT] = json.dumps({"incarnation": job.state.incarnation, "ids": [1, later]})

    def confirm_later() -> None:
        wait_until(lambda: json.loads(kept[SENT]).get("commits") == [1], say="the new form is not stored")
        job.coordinator.confirm_commits(later)

    kinds = ("checkpoint", "savepoint", "commit")
    assert seen(watched(kept, lambda: soon(confirm_later), kinds=kinds)) == [(later, "commit")]
