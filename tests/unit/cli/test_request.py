"""``trigger``, ``savepoint`` and ``stop``: what they request, how they wait, and what an interrupted wait leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import socket
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_checkpoint_provider.cli import request, verbs
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE, Beat, Process
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


# -- the result ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "kind"), [([], "checkpoint"), (["--full"], "full_checkpoint")])
def test_trigger_completes_a_checkpoint(job: Job, checkpoints: Command, options: list[str], kind: str) -> None:
    with serving(job):
        done = checkpoints("trigger", "orders", *options)
    pointer = f"{job.store.uri}/{job.keys.prefix}/chk-2"
    assert done.code == 0, done.err
    assert [line.split() for line in done.lines] == [
        ["ID", "KIND", "STATE", "POINTER"], ["chk-2", *kind.split("_"), "completed", pointer],
    ]  # fmt: skip
    made = job.checkpoint(2)
    assert (made.kind, made.request.origin, made.request.owner.partition("@")[1]) == (kind, "cli", "@")


@pytest.mark.parametrize("verb", VERBS)
def test_plain_output_is_the_pointer_alone(job: Job, checkpoints: Command, verb: tuple[str, ...]) -> None:
    """As in ``P=$(checkpoints savepoint orders -o plain)``."""
    with serving(job):
        done = checkpoints(*verb, "-o", "plain")
    made = job.checkpoint(2)
    assert (done.code, done.out) == (0, f"{made.target or f'{job.store.uri}/{job.keys.prefix}/chk-2'}\n")


def test_plain_output_of_a_request_that_waits_is_empty(job: Job, checkpoints: Command) -> None:
    assert checkpoints("savepoint", "orders", "--no-wait", "-o", "plain").out == ""


def test_each_call_is_a_new_request(job: Job, checkpoints: Command) -> None:
    with serving(job):
        found = [json.loads(checkpoints("trigger", "orders", "-o", "json").out) for _ in range(2)]
    assert [checkpoint["id"] for checkpoint in found] == [2, 3]
    assert {checkpoint["run"] for checkpoint in found} == {RUN}


def test_savepoint_lies_below_the_root_by_default(job: Job, checkpoints: Command) -> None:
    with serving(job):
        done = checkpoints("savepoint", "orders", "--name", "before price change", "--pinned", "-o", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["kind"], found["state"], found["name"], found["pinned"]) == (
        "savepoint", "completed", "before price change", True,
    )  # fmt: skip
    assert found["pointer"].startswith(f"{job.store.uri}/savepoints/savepoint-orders-2-")
    assert open_savepoint(SavepointPointer.parse(found["pointer"]), job.store).verify() == 2


def test_savepoint_lies_at_the_given_target(job: Job, checkpoints: Command, tmp_path: Path) -> None:
    with serving(job):
        done = checkpoints("savepoint", "orders", "--to", f"{tmp_path}/elsewhere", "-o", "json")
    assert json.loads(done.out)["pointer"].startswith(f"file://{tmp_path}/elsewhere/savepoint-orders-2-"), done.err


@pytest.mark.parametrize("verb", VERBS[1:], ids=lambda verb: verb[0])
@pytest.mark.parametrize("place", ["jobs", "jobs/orders/job", "jobs/orders/job/chk-1/mine", "jobs/mine"])
def test_target_inside_of_a_history_is_refused(
    job: Job, checkpoints: Command, verb: tuple[str, ...], place: str
) -> None:
    before = job.state.n
    done = checkpoints(*verb, "--to", f"{job.store.uri}/{place}")
    assert (done.code, done.out, job.state.n) == (2, "", before)
    assert f"{job.store.uri}/{place} lies inside of the histories of jobs" in done.err


@pytest.mark.parametrize("below", ["", "/mine", "/state/mine"])
def test_target_inside_of_another_savepoint_is_refused(job: Job, checkpoints: Command, below: str) -> None:
    other = savepoint(job).target
    before = job.state.n
    done = checkpoints("savepoint", "orders", "--to", f"{other}{below}")
    assert (done.code, done.out, job.state.n) == (2, "", before)
    assert f"{other}{below} lies inside of the savepoint {other}, and would be deleted with it" in done.err


def test_stop_suspends_the_job(job: Job, checkpoints: Command) -> None:
    with serving(job):
        done = checkpoints("stop", "orders", "--yes")
    assert done.code == 0, done.err
    assert done.err.startswith("STOP orders: attempt 1 "), "before the lines of the wait, also in a pipe"
    resume = f"`checkpoints --root {job.store.uri[7:]} restore orders --from latest`"
    assert done.lines[-1] == f"orders is suspended: nothing starts it again before {resume}"
    made = job.checkpoint(2)
    assert done.lines[-2].split() == ["chk-2", "savepoint", "completed", made.target]
    assert (made.kind, made.published, job.state.attempts[-1].outcome) == ("suspend_savepoint", True, "suspended")
    assert json.loads(checkpoints("jobs", "-o", "json").out)[0]["state"] == "suspended"


def test_stop_that_drains_says_so_and_asks_for_it(job: Job, checkpoints: Command) -> None:
    with serving(job):
        done = checkpoints("stop", "orders", "--drain", "--yes")
    assert done.code == 0, done.err
    assert "each streaming query reads all rows that have arrived" in done.err
    assert (job.checkpoint(2).kind, job.state.attempts[-1].outcome) == ("terminate_savepoint", "suspended")


def test_resume_command_names_the_stopped_run(store: LocalStore, checkpoints: Command) -> None:
    """Without the run, the command could restore and fence a newer run of the job."""
    job = Job(store, scope=RUN)
    job.start()
    with serving(job):
        done = checkpoints("stop", "orders", RUN, "--yes")
    assert done.lines[-1].endswith(f"before `checkpoints --root {store.root} restore orders {RUN} --from latest`")


def test_savepoint_is_published_by_the_command_if_the_driver_died(job: Job, checkpoints: Command) -> None:
    left = savepoint(job, publish=False)
    with serving(job, Habits(beats=False, publishes=False)):
        done = checkpoints("savepoint", "orders", "-o", "json")
    assert done.code == 0, done.err
    made = json.loads(done.out)["id"]
    assert (job.checkpoint(made).published, job.checkpoint(left.id).published) == (True, False)


# -- messages while it waits ---------------------------------------------------------------------------------------------


def test_wait_prints_one_line_per_change(job: Job, checkpoints: Command) -> None:
    """Some fifteen polls see the same."""
    with Heart(job.store, job.keys.attempt_beat(1), Beat(epoch=1, activity="stage 'clean'")):
        done = checkpoints("savepoint", "orders", "--timeout", "300 ms")
    waits, left = done.err.splitlines()
    assert waits == "chk-2 of orders: triggered, its driver takes it at the next barrier; now: stage 'clean'"
    assert left.startswith("time is up: chk-2 is pending")


def test_request_behind_another_whose_driver_is_lost_ends(
    job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0.01")
    job.coordinator.trigger(Request(token="first", origin="cli"))
    done = checkpoints("trigger", "orders", "--timeout", "10")
    assert "chk-3 of orders: triggered, no heartbeat of its driver is seen" in done.err
    assert (done.code, job.checkpoint(3).reason) == (1, "driver lost")


def test_wait_prints_that_no_heartbeat_is_seen(job: Job, checkpoints: Command) -> None:
    done = checkpoints("trigger", "orders", "--timeout", "50 ms")
    assert done.code == 6
    assert done.err.splitlines()[0] == "chk-2 of orders: triggered, no heartbeat of its driver is seen"


def test_request_waits_in_the_queue(job: Job, checkpoints: Command) -> None:
    """A checkpoint of a task is pending, and only one may be pending."""
    job.coordinator.trigger(Request(token="a task's", origin="task"))
    done = checkpoints("trigger", "orders", "--timeout", "50 ms")
    assert (done.code, done.out) == (6, "")
    waits, left = done.err.splitlines()
    assert waits == "orders: the request waits, 1 of 1"
    assert left.startswith("time is up: the request waits for its turn, and the request stays; `checkpoints --root ")
    with serving(job):
        assert json.loads(checkpoints("trigger", "orders", "-o", "json").out)["id"] == 4
    assert [checkpoint.request.origin for checkpoint in job.state.retained][-2:] == ["cli", "cli"]


# -- interrupts and timeouts ---------------------------------------------------------------------------------------------


def sleep_by(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Let the command's module alone sleep by ``sleep``: other threads of this process sleep as ever."""
    monkeypatch.setattr(request, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_interrupt_keeps_the_request(
    job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    sleep_by(monkeypatch, interrupted)
    done = checkpoints(*verb)
    assert done.code == 6
    left = done.err.splitlines()[-1]
    assert left.startswith("interrupted: chk-2 is pending, and the request stays; `checkpoints --root ")
    assert " list orders` shows its outcome. To wait again, repeat the command with --request-id " in left
    assert [checkpoint.id for checkpoint in job.state.pending] == [2]


def test_interrupt_while_the_driver_ends_reports_no_failure(
    job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The savepoint is completed and the job is suspended: only the wait ends."""
    wait, suspended = time.sleep, list[bool]()

    def sleep(seconds: float) -> None:
        if seconds == request.EVERY:
            suspended.append(job.state.suspended is not None)
            if suspended.count(True) == 2:  # the look between has seen it, too
                raise KeyboardInterrupt
        wait(0.01)

    sleep_by(monkeypatch, sleep)
    with serving(job, Habits(ends=False, publishes=False)):
        done = checkpoints("stop", "orders", "--yes")
    assert done.code == 6
    assert done.err.splitlines()[-1].startswith("interrupted: chk-2 is completed, and the request stays")


def test_owner_is_the_user_id_if_the_user_has_no_name(
    job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the user id may have no entry in /etc/passwd."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    number = max(user.pw_uid for user in pwd.getpwall()) + 1
    monkeypatch.setattr(os, "getuid", lambda: number)
    assert checkpoints("trigger", "orders", "--no-wait").code == 0
    assert job.checkpoint(2).request.owner == f"{number}@{socket.gethostname()}"


def test_no_wait_returns_a_pending_savepoint(job: Job, checkpoints: Command) -> None:
    done = checkpoints("savepoint", "orders", "--no-wait", "-o", "json")
    found = json.loads(done.out)
    assert (done.code, found["id"], found["state"], found["pointer"]) == (0, 2, "pending", None)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_timeout_of_plain_seconds_ends_the_wait(job: Job, checkpoints: Command, verb: tuple[str, ...]) -> None:
    done = checkpoints(*verb, "--timeout", "0.05")
    assert done.code == 6
    assert done.err.splitlines()[-1].startswith("time is up: chk-2 is pending, and the request stays")


@pytest.mark.parametrize(("text", "number"), [("10", 10), ("5.", 5), (".5", 0.5), ("1e3", 1000), ("2E-2", 0.02)])
def test_timeout_of_plain_seconds_is_any_number(text: str, number: float) -> None:
    assert verbs._timeout(Namespace(timeout=text)) == number


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_repeated_request_id_finds_the_first_answer(job: Job, checkpoints: Command, verb: tuple[str, ...]) -> None:
    again = (*verb, "--request-id", "nightly upgrade")
    left = checkpoints(*again, "--timeout", "0.05")
    assert left.err.rstrip().endswith("repeat the command with --request-id 'nightly upgrade' [CKP242]")
    with serving(job):
        done = checkpoints(*again)
    before = job.state.n
    last = checkpoints(*again, "-o", "json")
    assert (left.code, done.code, last.code, job.state.n) == (6, 0, 0, before), done.err + last.err
    assert json.loads(last.out)["id"] == 2
    assert [checkpoint.id for checkpoint in job.state.checkpoints] == [1, 2]


def test_repeated_request_id_of_an_aborted_checkpoint_reports_the_abort(job: Job, checkpoints: Command) -> None:
    with serving(job, Habits(aborts="declined")):
        codes = [checkpoints("trigger", "orders", "--request-id", "nightly").code for _ in range(2)]
    assert (codes, [checkpoint.id for checkpoint in job.state.checkpoints]) == ([1, 1], [1, 2])


# -- refused, aborted, failed --------------------------------------------------------------------------------------------


def ended(job: Job) -> None:
    job.end("failed")


def finished(job: Job) -> None:
    job.end()


def suspended(job: Job) -> None:
    savepoint(job, kind="suspend_savepoint")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize("meanwhile", [ended, finished])
def test_request_is_refused_if_no_driver_runs(
    job: Job, checkpoints: Command, verb: tuple[str, ...], meanwhile: Callable[[Job], None]
) -> None:
    meanwhile(job)
    before = job.state.n
    done = checkpoints(*verb)
    assert (done.code, done.out, job.state.n) == (3, "", before)
    assert "[CKP230]" in done.err
    advice = "orders: nothing to stop" if verb[0] == "stop" else "start the job first"
    assert advice in done.err


@pytest.fixture
def launched(store: LocalStore) -> Job:
    """``orders`` was launched by a task that is submitting its driver."""
    job = Job(store)
    job.plan()
    job.beat_launch()
    return job


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_request_waits_for_a_driver_that_is_starting(
    launched: Job, checkpoints: Command, verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as driver:

        def attach(seconds: float) -> None:
            if not launched.state.attempts:
                launched.attach()
                driver.enter_context(serving(launched))
            time.sleep(seconds)

        sleep_by(monkeypatch, attach)
        done = checkpoints(*verb)
    assert done.code == 0, done.err
    first, *_ = done.err.splitlines()
    assert re.fullmatch(r"orders: launched \S+ \S+ by try 1, not attached yet; waiting for its driver", first)


@pytest.mark.parametrize(
    "verb",
    [("trigger", "orders", "--no-wait"), ("savepoint", "orders", "--timeout", "1"), ("stop", "orders", "--dry-run")],
    ids=lambda verb: verb[0],
)
def test_request_that_does_not_wait_says_that_the_driver_is_starting(
    launched: Job, checkpoints: Command, verb: tuple[str, ...]
) -> None:
    done = checkpoints(*verb)
    assert (done.code, done.out) == (3, "")
    assert "by try 1, not attached yet: no driver is running" in done.err
    assert "[CKP245]" in done.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_dead_launch_is_not_waited_for(launched: Job, checkpoints: Command, verb: tuple[str, ...]) -> None:
    launched.beat_launch(replace(Process.this(), start_ticks="another one's"))
    done = checkpoints(*verb)
    assert (done.code, done.out) == (3, "")
    assert ("orders: nothing to stop" if verb[0] == "stop" else "not attached yet") in done.err


def test_interrupted_wait_for_a_driver_requests_nothing(
    launched: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    before = launched.state.n
    sleep_by(monkeypatch, interrupted)
    done = checkpoints("savepoint", "orders")
    assert (done.code, done.out, launched.state.n) == (3, "", before)
    assert "interrupted; nothing was requested" in done.err


@pytest.mark.parametrize("verb", VERBS[:2], ids=lambda verb: verb[0])
def test_request_to_a_suspended_job_is_refused(job: Job, checkpoints: Command, verb: tuple[str, ...]) -> None:
    suspended(job)
    done = checkpoints(*verb)
    assert (done.code, done.out) == (3, "")
    assert f"to resume it: `checkpoints --root {job.store.uri[7:]} restore orders --from latest` [CKP130]" in done.err


@pytest.mark.parametrize("approval", ["--yes", "--dry-run"])
def test_stop_of_a_suspended_job_is_done_already(job: Job, checkpoints: Command, approval: str) -> None:
    suspended(job)
    before = job.state.n
    done = checkpoints("stop", "orders", approval)
    assert (done.code, job.state.n) == (0, before), done.err
    assert done.lines[0] == "done already: the job is suspended, and nothing was changed"
    assert done.lines[-2].split() == ["chk-2", "savepoint", "completed", job.checkpoint(2).target]
    assert done.lines[-1].startswith("orders is suspended: nothing starts it again before ")


def test_stop_that_drains_is_refused_for_a_job_that_was_suspended_without_that(job: Job, checkpoints: Command) -> None:
    suspended(job)
    done = checkpoints("stop", "orders", "--drain", "--yes")
    assert (done.code, done.out) == (3, "")
    assert "[CKP130]" in done.err


def test_stop_of_an_older_run_is_refused_while_another_run_is_suspended(
    store: LocalStore, checkpoints: Command
) -> None:
    job = Job(store)
    job.start()
    job.end("failed")
    job.start(2, run="manual__2")
    suspended(job)
    done = checkpoints("stop", "orders", RUN, "--yes")
    assert (done.code, done.out) == (3, "")
    assert f"orders: run {RUN} is not its newest run. Name run manual__2" in done.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nobody"], 4, "there is no job 'nobody'"),
        (["orders", "another"], 4, "job 'orders' has no run 'another'"),
        (["no/job"], 2, "'no/job' is not a job id"),
    ],
)
def test_request_for_an_absent_job_or_run_is_refused(
    job: Job, checkpoints: Command, verb: tuple[str, ...], words: list[str], code: int, says: str
) -> None:
    done = checkpoints(verb[0], *words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_request_for_an_older_run_is_refused(store: LocalStore, checkpoints: Command, verb: tuple[str, ...]) -> None:
    job = Job(store)
    job.start()
    job.end("failed")
    job.start(2, run="manual__2")
    done = checkpoints(verb[0], "orders", RUN, *verb[2:])
    assert (done.code, done.out) == (3, "")
    assert f"orders: run {RUN} is not its newest run. Name run manual__2" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["trigger", "orders", "--timeout", "soon"], 2, "--timeout='soon' is not a duration"),
        (["trigger", "orders", "--timeout", "1e999"], 2, "--timeout=inf is not a duration"),
        (["trigger", "orders", "--timeout", "1.2.3"], 2, "--timeout='1.2.3' is not a duration"),
        (["trigger", "orders", "--timeout", ""], 2, "--timeout='' is not a duration"),
        (["trigger", "orders", "--timeout", "-1"], 2, "--timeout='-1' is not a duration"),
        (["stop", "orders", "--timeout", "nan", "--yes"], 2, "--timeout='nan' is not a duration"),
        (["trigger", "orders", "--request-id", ""], 2, "write 1 to 200 characters in one line"),
        (["trigger", "orders", "--request-id", "one\ntwo"], 2, "write 1 to 200 characters in one line"),
        (["savepoint", "orders", "--name", "one\ttwo\nthree"], 2, "write it in one line, without tabs"),
        (["savepoint", "orders", "--to", "hdfs://namenode/sp"], 2, "[CKP612]"),
        (["stop", "orders", "--to", "~/sp", "--yes"], 2, "[CKP612]"),
        (["savepoint", "orders", "--to", "savepoints"], 2, "write an absolute path or a URI"),
        (["savepoint", "orders", "--to", ""], 2, "write an absolute path or a URI"),
        (["stop", "orders", "--to", "./a:b", "--yes"], 2, "write an absolute path or a URI"),
    ],
)
def test_invalid_arguments_are_refused(
    job: Job, checkpoints: Command, arguments: list[str], code: int, says: str
) -> None:
    before = job.state.n
    done = checkpoints(*arguments)
    assert (done.code, done.out, job.state.n) == (code, "", before)
    assert says in done.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_aborted_checkpoint_exits_with_1(job: Job, checkpoints: Command, verb: tuple[str, ...]) -> None:
    with serving(job, Habits(aborts="declined")):
        done = checkpoints(*verb)
    assert (done.code, done.out) == (1, "")
    assert "chk-2 of orders was aborted: declined (the driver said no). Trigger another checkpoint [CKP201]" in done.err
    assert job.state.running(), "the job goes on"


def test_stop_exits_with_1_if_the_driver_does_not_end(store: LocalStore, checkpoints: Command) -> None:
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
    resume = f"checkpoints --root {job.store.uri[7:]} restore orders --from chk-2"
    assert last.endswith(f"To resume, which fences the driver: {resume} [CKP135]")


def test_stop_exits_with_1_if_the_driver_fails(job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "end", _badly(Job.end))
    with serving(job):
        done = checkpoints("stop", "orders", "--yes")
    assert (done.code, done.out) == (1, "")
    target = job.checkpoint(2).target
    assert f"orders: its driver failed after savepoint {target} was completed. The job is suspended" in done.err
    assert done.err.endswith(
        f"To resume: checkpoints --root {job.store.uri[7:]} restore orders --from chk-2 [CKP136]\n"
    )


def _badly(end: object) -> object:
    assert callable(end)
    return lambda job, how="finished": end(job, "failed")


# -- confirming a stop ---------------------------------------------------------------------------------------------------


def test_stop_with_dry_run_prints_what_it_would_do(job: Job, checkpoints: Command) -> None:
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


def test_stop_is_refused_without_a_terminal(job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    before = job.state.n
    done = checkpoints("stop", "orders")
    assert (done.code, done.out, job.state.n) == (2, "", before)
    assert "--dry-run" in done.err


def test_stop_with_dry_run_succeeds_during_a_checkpoint(job: Job, checkpoints: Command) -> None:
    job.coordinator.trigger(Request(token="barrier"))
    assert checkpoints("stop", "orders", "--dry-run").code == 0


def test_stop_with_dry_run_is_refused_if_no_driver_runs(job: Job, checkpoints: Command) -> None:
    job.end("failed")
    assert checkpoints("stop", "orders", "--dry-run").code == 3


# -- without waiting, and while the store does not answer ------------------------------------------------------------------


def test_no_wait_returns_at_once_from_the_queue(job: Job, checkpoints: Command) -> None:
    """The next barrier, which empties the queue, may be hours away."""
    job.coordinator.trigger(Request(token="another's", origin="task"))
    done = checkpoints("trigger", "orders", "--no-wait", "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"id": None, "kind": "checkpoint", "state": "queued", "pointer": None}
    assert [queued.request.origin for queued in job.state.queue] == ["cli"]


def test_stop_succeeds_though_the_store_fails_for_a_moment(
    job: Job, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is still in the journal, so reporting a failure would be wrong."""
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
