"""``trigger``, ``savepoint`` and ``stop``: asked of a job, waited for, and left where nobody waits any longer."""

from __future__ import annotations

import json
import os
import pwd
import socket
import time
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli import request
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import StoreUnavailable
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import RUN, Job
from tests.unit.cli.conftest import Command
from tests.unit.cli.driver import Habits, savepoint, serving

VERBS = [("trigger", "orders"), ("savepoint", "orders"), ("stop", "orders", "--yes")]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "EVERY", 0.02)


# -- what comes of it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "kind"), [([], "checkpoint"), (["--full"], "full_checkpoint")])
def test_a_checkpoint(job: Job, checkpoints: Command, options: list[str], kind: str) -> None:
    with serving(job):
        done = checkpoints("trigger", "orders", *options)
    pointer = f"{job.store.uri}/{job.keys.prefix}/chk-2"
    assert done.code == 0, done.err
    assert [line.split() for line in done.lines] == [
        ["ID", "KIND", "STATE", "POINTER"], ["chk-2", kind, "completed", pointer],
    ]  # fmt: skip
    made = job.checkpoint(2)
    assert (made.kind, made.request.origin, made.request.owner.partition("@")[1]) == (kind, "cli", "@")


def test_each_call_is_a_new_request(job: Job, checkpoints: Command) -> None:
    with serving(job):
        found = [json.loads(checkpoints("trigger", "orders", "-o", "json").out) for _ in range(2)]
    assert [one["id"] for one in found] == [2, 3]
    assert {one["run"] for one in found} == {RUN}


def test_a_savepoint_lies_below_the_root(job: Job, checkpoints: Command) -> None:
    with serving(job):
        done = checkpoints("savepoint", "orders", "--name", "before price change", "--pinned", "-o", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["kind"], found["state"], found["name"], found["pinned"]) == (
        "savepoint", "completed", "before price change", True,
    )  # fmt: skip
    assert found["pointer"].startswith(f"{job.store.uri}/savepoints/savepoint-orders-2-")
    assert open_savepoint(SavepointPointer.parse(found["pointer"]), job.store).verify() == 2


def test_a_savepoint_lies_where_it_was_sent(job: Job, checkpoints: Command, tmp_path: Path) -> None:
    with serving(job):
        done = checkpoints("savepoint", "orders", "--to", f"{tmp_path}/elsewhere", "-o", "json")
    assert json.loads(done.out)["pointer"].startswith(f"file://{tmp_path}/elsewhere/savepoint-orders-2-"), done.err


def test_stop_suspends_the_job(job: Job, checkpoints: Command) -> None:
    with serving(job):
        done = checkpoints("stop", "orders", "--yes")
    assert done.code == 0, done.err
    assert done.lines[0].startswith("STOP orders: attempt 1 ")
    resume = "`airflow checkpoints restore orders --from latest`"
    assert done.lines[-1] == f"orders is suspended: nothing starts it again before {resume}"
    made = job.checkpoint(2)
    assert done.lines[-2].split() == ["chk-2", "suspend_savepoint", "completed", made.target]
    assert (made.kind, made.published, job.state.attempts[-1].how) == ("suspend_savepoint", True, "suspended")
    assert json.loads(checkpoints("jobs", "-o", "json").out)[0]["state"] == "suspended"


def test_what_lets_it_go_on_names_the_run_that_was_stopped(store: LocalStore, checkpoints: Command) -> None:
    """The newest history of the job may be another run's by then, which the command would fence."""
    job = Job(store, scope=RUN)
    job.start()
    with serving(job):
        done = checkpoints("stop", "orders", RUN, "--yes")
    assert done.lines[-1].endswith(f"before `airflow checkpoints restore orders {RUN} --from latest`")


def test_a_savepoint_whose_driver_died_after_its_completion_is_published_here(job: Job, checkpoints: Command) -> None:
    left = savepoint(job, publish=False)
    with serving(job, Habits(beats=False, publishes=False)):
        done = checkpoints("savepoint", "orders", "-o", "json")
    assert done.code == 0, done.err
    made = json.loads(done.out)["id"]
    assert (job.checkpoint(made).published, job.checkpoint(left.id).published) == (True, False)


# -- what it says while it waits -----------------------------------------------------------------------------------------


def test_wait_prints_one_line_per_change(job: Job, checkpoints: Command) -> None:
    with serving(job):
        done = checkpoints("savepoint", "orders")
    said = done.err.splitlines()
    assert len(said) == len(set(said))
    known = {
        "chk-2 of orders: triggered, its driver takes it at the next barrier; now: stage 'clean'",
        "chk-2 of orders: completed, its driver publishes it",
    }
    assert set(said) <= known


def test_wait_prints_that_no_heartbeat_is_seen(job: Job, checkpoints: Command) -> None:
    done = checkpoints("trigger", "orders", "--timeout", "50 ms")
    assert done.code == 6
    assert done.err.splitlines()[0] == "chk-2 of orders: triggered, no heartbeat of its driver is seen"


def test_request_waits_in_the_queue(job: Job, checkpoints: Command) -> None:
    """One that somebody else asked for is pending, and as many may be."""
    job.coordinator.trigger(Request(token="a task's", origin="task"))
    done = checkpoints("trigger", "orders", "--timeout", "50 ms")
    assert (done.code, done.out) == (6, "")
    waits, left = done.err.splitlines()
    assert waits == "orders: the request waits, 1 of 1"
    assert left.startswith("time is up: the request waits for its turn, and nothing was taken back; `list orders`")
    with serving(job):
        assert json.loads(checkpoints("trigger", "orders", "-o", "json").out)["id"] == 4
    assert [one.request.origin for one in job.state.retained][-2:] == ["cli", "cli"]


# -- nobody waits any longer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_interrupt_keeps_the_request(
    job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_checkpoint_provider.cli.request.time.sleep", interrupted)
    done = checkpoints(*verb)
    assert done.code == 6
    assert done.err.splitlines()[-1] == (
        "interrupted: chk-2 is pending, and nothing was taken back; `list orders` shows what becomes of it [CKP242]"
    )
    assert [one.id for one in job.state.pending] == [2]


def test_an_interrupt_while_a_driver_ends_accuses_nobody(
    job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its savepoint is completed and the job is suspended: only the waiting is over."""
    wait, suspended = time.sleep, list[bool]()

    def sleep(seconds: float) -> None:
        if seconds == request.EVERY:
            suspended.append(job.state.suspended is not None)
            if suspended.count(True) == 2:  # the look between has seen it, too
                raise KeyboardInterrupt
        wait(0.01)

    monkeypatch.setattr("airflow_checkpoint_provider.cli.request.time.sleep", sleep)
    with serving(job, Habits(ends=False, publishes=False)):
        done = checkpoints("stop", "orders", "--yes")
    assert done.code == 6
    assert done.err.splitlines()[-1].startswith("interrupted: chk-2 is completed, and nothing was taken back")


def test_who_has_no_name_asks_by_number(job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, whose user may stand in no file of users."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    number = max(one.pw_uid for one in pwd.getpwall()) + 1
    monkeypatch.setattr(os, "getuid", lambda: number)
    assert checkpoints("trigger", "orders", "--no-wait").code == 0
    assert job.checkpoint(2).request.owner == f"{number}@{socket.gethostname()}"


def test_nobody_need_wait(job: Job, checkpoints: Command) -> None:
    done = checkpoints("savepoint", "orders", "--no-wait", "-o", "json")
    found = json.loads(done.out)
    assert (done.code, found["id"], found["state"], found["pointer"]) == (0, 2, "pending", None)


# -- refused, aborted, failed --------------------------------------------------------------------------------------------


def ended(job: Job) -> None:
    job.end("failed")


def finished(job: Job) -> None:
    job.end()


def suspended(job: Job) -> None:
    savepoint(job, kind="suspend_savepoint")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("meanwhile", "code", "says"),
    [
        (ended, 3, "orders: no driver is running that could take a checkpoint; start the job first [CKP230]"),
        (finished, 3, "[CKP230]"),
        (suspended, 3, "to resume it: `airflow checkpoints restore orders --from latest` [CKP130]"),
    ],
)
def test_who_cannot_be_asked(
    job: Job, checkpoints: Command, verb: tuple[str, ...], meanwhile: object, code: int, says: str
) -> None:
    assert callable(meanwhile)
    meanwhile(job)
    before = job.state.n
    done = checkpoints(*verb)
    assert (done.code, done.out, job.state.n) == (code, "", before)
    assert says in done.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nobody"], 4, "there is no job 'nobody'"),
        (["orders", "another"], 4, "job 'orders' has no run 'another'"),
        (["no/job"], 2, "job_id='no/job'"),
    ],
)
def test_what_is_not_there(
    job: Job, checkpoints: Command, verb: tuple[str, ...], words: list[str], code: int, says: str
) -> None:
    done = checkpoints(verb[0], *words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_run_that_another_has_followed_is_not_meant(
    store: LocalStore, checkpoints: Command, verb: tuple[str, ...]
) -> None:
    job = Job(store)
    job.start()
    job.end("failed")
    job.start(2, run="manual__2")
    done = checkpoints(verb[0], "orders", RUN, *verb[2:])
    assert (done.code, done.out) == (3, "")
    assert f"orders, run {RUN}: it does not run any more, run manual__2 does" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["trigger", "orders", "--timeout", "soon"], 2, "--timeout='soon' is no duration"),
        (["trigger", "orders", "--timeout", ""], 2, "--timeout='' is no duration"),
        (["savepoint", "orders", "--name", "one\ttwo\nthree"], 2, "write it in one line, without tabs"),
        (["savepoint", "orders", "--to", "hdfs://namenode/sp"], 2, "[CKP612]"),
        (["stop", "orders", "--to", "~/sp", "--yes"], 2, "[CKP612]"),
        (
            ["stop", "orders", "--drain", "--yes"],
            2,
            "--drain needs streaming queries, which this version does not have",
        ),
    ],
)
def test_wrong_words(job: Job, checkpoints: Command, arguments: list[str], code: int, says: str) -> None:
    before = job.state.n
    done = checkpoints(*arguments)
    assert (done.code, done.out, job.state.n) == (code, "", before)
    assert says in done.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_an_aborted_one(job: Job, checkpoints: Command, verb: tuple[str, ...]) -> None:
    with serving(job, Habits(aborts="declined")):
        done = checkpoints(*verb)
    assert (done.code, done.out) == (1, "")
    assert "chk-2 of orders was aborted: declined (the driver said no). Trigger another checkpoint [CKP201]" in done.err
    assert job.state.running(), "the job goes on"


def test_a_driver_that_does_not_end(store: LocalStore, checkpoints: Command) -> None:
    job = Job(store)
    job.start(timeout="0.5 s")
    job.complete(job.coordinator.trigger(Request(token="barrier 1")))
    with serving(job, Habits(ends=False, publishes=False)):
        done = checkpoints("stop", "orders", "--yes")
    made = job.checkpoint(2)
    assert (done.code, done.out, made.published) == (1, "", True)
    last = done.err.splitlines()[-1]
    assert last.startswith(
        f"orders: its driver has not ended within 0.5 s. Savepoint {made.target} is completed, and the job is suspended"
    )
    assert last.endswith("To resume, which fences the driver: airflow checkpoints restore orders --from chk-2 [CKP135]")


def test_a_driver_that_ends_badly(job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "end", _badly(Job.end))
    with serving(job):
        done = checkpoints("stop", "orders", "--yes")
    assert (done.code, done.out) == (1, "")
    assert "orders: its driver failed. Savepoint file://" in done.err


def _badly(end: object) -> object:
    assert callable(end)
    return lambda job, how="finished": end(job, "failed")


# -- a stop asks ---------------------------------------------------------------------------------------------------------


def test_a_stop_says_what_it_would_do(job: Job, checkpoints: Command) -> None:
    before = job.state.n
    done = checkpoints("stop", "orders", "--dry-run")
    assert (done.code, job.state.n) == (0, before)
    assert done.lines == [
        "STOP orders: attempt 1 takes a savepoint at its next barrier, and ends",
        f"  savepoint   in a folder of its own below {job.store.uri}/savepoints",
        "  afterwards  the job is suspended: no schedule and no retry starts it before a restore",
        "nothing was changed (--dry-run)",
    ]
    assert json.loads(checkpoints("stop", "orders", "--dry-run", "-o", "json").out) == {
        "job": "orders", "run": RUN, "attempt": 1, "kind": "suspend_savepoint", "target": f"{job.store.uri}/savepoints",
    }  # fmt: skip


def test_a_stop_asks(job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    before = job.state.n
    done = checkpoints("stop", "orders")
    assert (done.code, done.out, job.state.n) == (2, "", before)
    assert "--dry-run" in done.err


def test_it_may_be_asked_for_while_a_barrier_takes_a_checkpoint(job: Job, checkpoints: Command) -> None:
    job.coordinator.trigger(Request(token="barrier"))
    assert checkpoints("stop", "orders", "--dry-run").code == 0


def test_a_dry_run_is_refused_as_the_stop_would_be(job: Job, checkpoints: Command) -> None:
    job.end("failed")
    assert checkpoints("stop", "orders", "--dry-run").code == 3


# -- while the store does not answer, and while nobody has time ------------------------------------------------------------


def test_who_only_asks_is_not_kept_waiting_by_another(job: Job, checkpoints: Command) -> None:
    """The queue may last until the next barrier, hours from now."""
    job.coordinator.trigger(Request(token="another's", origin="task"))
    done = checkpoints("trigger", "orders", "--no-wait", "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"id": None, "kind": "checkpoint", "state": "queued", "pointer": None}
    assert [one.request.origin for one in job.state.queue] == ["cli"]


def test_a_store_that_falls_silent_for_a_moment_changes_nothing(
    job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for stands: to say *failed* would be wrong."""
    silences = iter([True, False, True])
    poll = Journal.poll

    def hurt(self: Journal) -> State:
        if self.by.place == "cli" and next(silences, False):
            raise StoreUnavailable("503 slow down")
        return poll(self)

    monkeypatch.setattr(Journal, "poll", hurt)
    with serving(job):
        done = checkpoints("stop", "orders", "--yes")
    assert done.code == 0, done.err
    assert "503 slow down; looking again" in done.err
    assert job.state.suspended
