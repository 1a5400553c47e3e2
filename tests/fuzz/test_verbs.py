"""Every verb on a store in which objects of some jobs are hurt: typed errors, and nothing of anybody else changes. Runs anywhere."""

from __future__ import annotations

import contextlib
import json
import random
from typing import NamedTuple

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.coordinator.older_runs import collect_older_runs
from airflow_checkpoint_provider.coordinator.restore import examine
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Request, Token
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.storage import Store
from tests.fuzz import lake
from tests.fuzz.lake import BYSTANDER, JOBS, ROOT
from tests.fuzz.mutations import attack, short_and_long

LATER = "2027-06-01T00:00:00.000Z"
RUNS = {"flights_etl.delays": ("scheduled__2026-11-20", "scheduled__2026-11-21")}
LONGEST_OUTPUT = 200_000  # characters


@pytest.fixture(autouse=True)
def _beats_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.01")


class Attacked(NamedTuple):
    """A store in which the objects of one job are hurt, and the same store before."""

    job: str
    base: dict[str, bytes]
    objects: dict[str, bytes]


def attacked(chance: random.Random) -> Attacked:
    job = chance.choice(JOBS)
    base = lake.whole() if chance.random() < 0.5 else lake.compacted()
    return Attacked(job, base, lake.hurt_objects(base, (f"jobs/{job}/", f"savepoint-{job}-"), chance))


def _verbs(job: str, base: dict[str, bytes], chance: random.Random) -> tuple[tuple[str, ...], ...]:
    run = chance.choice(((), *((run,) for run in RUNS.get(job, ("manual__1",)))))
    number = f"chk-{chance.randrange(1, 8)}"
    prefix = f"{ROOT}/jobs/{job}/" + (f"runs/{run[0]}" if job in RUNS and run else "job")
    savepoints = sorted({key.split("/")[0] for key in base if key.startswith(f"savepoint-{job}-")})
    pointer = chance.choice([f"{prefix}/{number}", *(f"{ROOT}/{name}" for name in savepoints)])
    source = chance.choice(["latest", "run-start", "none", number, pointer])
    quick = ("--timeout", "0.01")
    verbs: list[tuple[str, ...]] = [
        ("jobs",),
        ("list", job, *run),
        ("show", job, *run),
        ("show", job, *run, number),
        ("show", job, *run, "--statistics"),
        ("story", job, *run),
        ("verify", pointer, "--deep"),
        ("prune", job, *run, "--dry-run"),
        ("prune", job, *run, "--yes"),
        ("restore", job, *run, "--from", source, "--dry-run"),
        ("restore", job, *run, "--from", source, "--yes"),
        ("restore", job, *run, "--from", pointer, "--claim", "--yes"),
        ("dispose", pointer, "--dry-run"),
        ("dispose", pointer, "--yes"),
        ("dispose", pointer, "--forget", "--yes"),
        ("trigger", job, *run, *quick),
        ("savepoint", job, *run, "--to", ROOT, *quick),
        ("stop", job, *run, "--to", ROOT, "--yes", *quick),
    ]
    return tuple((*verb, "-o", chance.choice(["table", "json", "plain"])) for verb in chance.sample(verbs, 3))


def belongs(key: str, job: str) -> bool:
    """Return whether a key is of the job: in its folder, or in a directory of a savepoint that it made or claimed."""
    return key.startswith((f"jobs/{job}/", f"savepoint-{job}-")) or (
        job == "etl.totals" and key.startswith("savepoint-etl.sums-")
    )


def of_others(objects: dict[str, bytes], job: str) -> dict[str, bytes]:
    return {key: body for key, body in objects.items() if not belongs(key, job)}


def check(done: lake.Done, verb: tuple[str, ...]) -> None:
    assert 0 <= done.code <= 6, verb
    assert len(done.out) + len(done.err) < LONGEST_OUTPUT, verb
    if done.code and not done.out:
        assert "[CKP" in done.err, done.err
    if done.out and verb[-1] == "json":
        json.loads(done.out)


def attack_verbs(seed: str) -> None:
    chance = random.Random(seed)
    job, base, objects = attacked(chance)
    store = lake.opened(objects)
    for verb in _verbs(job, base, chance):
        store.calls = 0
        check(lake.run(*verb), verb)
    assert of_others(store.objects, job) == of_others(objects, job)
    store.calls = 0
    listed = lake.run("jobs")
    assert BYSTANDER in listed.out
    assert lake.run("show", BYSTANDER).code == 0


def launch(store: Store, history: History, at: str) -> None:
    """Do as the task of a launch: read, verify the restore point, write the launch, and sweep older runs."""
    coordinator = Coordinator(Journal(store, Keys(history.prefix), By("task", "etl", "here"), clock=lambda: at))
    state = coordinator.journal.catch_up()
    run = history.run or "manual__2"
    dag, task = ("flights_etl", "delays") if history.run else ("etl", "job")
    token = Token(dag=dag, run=run, task=task, generation=5)
    spec = LaunchSpec(token=token, try_number=9, owner=token.owner, run=run, run_after=None, started_at=at)
    restored = examine(coordinator, state, state.restore_point())
    plan = c.PlanLaunch(spec=spec, job=history.job, scope=history.run or "", incarnation="new", base=None)
    coordinator.journal.append(plan)
    start = c.StartAttempt(token=spec.token, try_number=9, driver="fuzz")
    coordinator.journal.append(start)
    examine(coordinator, coordinator.state, coordinator.state.restore_point())
    states = States.restored(restored.seal, run)
    for uid in states.snapshots:
        if states.snapshots[uid].kind == "stage":
            states.stage(uid)
    coordinator.epoch = coordinator.state.last_epoch
    number = coordinator.trigger(Request(token="barrier 99", barrier="end"))
    coordinator.abort(number, "expired")
    coordinator.end_attempt(c.EndAttempt(epoch=coordinator.epoch, outcome="finished", exit_code=0))


def attack_launch(seed: str) -> None:
    chance = random.Random(seed)
    job, _, objects = attacked(chance)
    store = lake.opened(objects)
    history = History(job, chance.choice(RUNS[job]) if job in RUNS else None)
    with contextlib.suppress(CheckpointError):
        launch(store, history, "2026-11-23T00:00:00.000Z")
    store.calls = 0
    list(collect_older_runs(store, job, By("task", "", ""), own="", pause=lambda _: None, now=LATER))
    assert of_others(store.objects, job) == of_others(objects, job)


@short_and_long(20, 1_000)
def test_verbs_of_hurt_jobs_fail_by_typed_errors_and_change_nothing_else(inputs: int) -> None:
    attack(attack_verbs, "verbs", inputs)


@short_and_long(70, 4_000)
def test_launch_and_sweep_of_hurt_jobs_fail_by_typed_errors_and_change_nothing_else(inputs: int) -> None:
    attack(attack_launch, "launch", inputs)
