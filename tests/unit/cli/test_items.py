"""Items on the command line: how one is named, and what happens if none is."""

from __future__ import annotations

import json
import shlex

import pytest

from airflow_checkpoint_provider.protocol.wording import list_of, restore, show
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.recorded import Recorded, three_stages
from tests.unit.cli.conftest import RUN, Command

LOAD = "load_tables.load"


@pytest.fixture
def tables(store: LocalStore) -> dict[str, Recorded]:
    """Two items of one run, of which one has failed."""
    found = {}
    for index, item in enumerate(("orders", "payments")):
        found[item] = recorded = Recorded(store, LOAD, RUN, item, index)
        three_stages(recorded)
    found["payments"].ended("03:30:00", "failed", 1)
    return found


def test_list_shows_the_item_of_each_checkpoint(tables: dict[str, Recorded], checkpoints: Command) -> None:
    done = checkpoints("list", LOAD)
    assert done.lines[0].split()[:5] == ["ID", "KIND", "ORIGIN", "RUN", "ITEM"]
    rows = json.loads(checkpoints("list", LOAD, RUN, "-o", "json").out)
    assert {row["item"] for row in rows} == {"orders", "payments"}
    rows = json.loads(checkpoints("list", LOAD, "--item", "orders", "-o", "json").out)
    assert {row["item"] for row in rows} == {"orders"}


@pytest.mark.usefixtures("fast_beats")
def test_jobs_shows_the_item_that_a_person_wants_to_see(tables: dict[str, Recorded], checkpoints: Command) -> None:
    (row,) = json.loads(checkpoints("jobs", "-o", "json").out)
    assert (row["job"], row["item"]) == (LOAD, "orders"), "it runs by its journal"
    assert "ITEM" in checkpoints("jobs").lines[0]


@pytest.mark.parametrize("verb", ["show", "story", "trigger", "stop"])
@pytest.mark.parametrize("run", [(), (RUN,)])
def test_verb_that_would_have_to_choose_an_item_refuses(
    tables: dict[str, Recorded], checkpoints: Command, verb: str, run: tuple[str, ...]
) -> None:
    done = checkpoints(verb, LOAD, *run)
    assert done.code == 2
    assert (
        f"job '{LOAD}', run {RUN}, has a history for each item: orders, payments. Name one, as in --item=orders"
        in done.err
    )


@pytest.mark.parametrize("run", [(), (RUN,)])
def test_named_item_is_shown(tables: dict[str, Recorded], checkpoints: Command, run: tuple[str, ...]) -> None:
    done = checkpoints("show", LOAD, *run, "--item", "payments")
    assert done.code == 0
    assert done.lines[0].startswith(f"CHECKPOINTS {LOAD}, item payments, run {RUN}: FAILED")
    one = checkpoints("show", LOAD, *run, "chk-3", "--item", "payments")
    assert one.lines[0].startswith(f"{LOAD}, item payments, run {RUN}, attempt 1: ")
    story = json.loads(checkpoints("story", LOAD, *run, "--item", "payments", "-o", "json").out)
    assert (story["item"], story["outcome"]) == ("payments", "failed")


def test_checkpoint_of_an_item_is_verified_by_its_names(tables: dict[str, Recorded], checkpoints: Command) -> None:
    done = checkpoints("verify", LOAD, RUN, "chk-3", "--item", "orders")
    assert (done.code, "is complete" in done.out) == (0, True)
    assert f"/runs/{RUN}/items/orders/chk-3" in done.out
    assert checkpoints("verify", f"{tables['orders'].store.uri}/x", "--item", "orders").code == 2


def test_unknown_item_is_not_found(tables: dict[str, Recorded], checkpoints: Command) -> None:
    done = checkpoints("show", LOAD, RUN, "--item", "order")
    assert done.code == 4
    assert "has no item 'order'" in done.err
    assert "Did you mean 'orders'? Its items: orders, payments" in done.err
    assert checkpoints("show", LOAD, "--item", "stocks").code == 4


def test_error_names_the_items_of_a_run_or_the_command_that_prints_all(store: LocalStore, checkpoints: Command) -> None:
    for number in range(32):
        Recorded(store, LOAD, RUN, f"table_{number:02}").started("19:00:00")
    done = checkpoints("show", LOAD)
    command = f"checkpoints --root {store.root} list {LOAD} {RUN} --limit 1000"
    assert f"table_28, table_29 and 2 more (`{command}` prints all). Name one, as in --item=table_00" in done.err
    assert checkpoints("show", LOAD, "--item", "table_31").code == 0


def test_item_that_names_nothing_is_wrong_usage(tables: dict[str, Recorded], checkpoints: Command) -> None:
    assert checkpoints("show", LOAD, "--item", " ").code == 2


def test_item_is_restored_alone(tables: dict[str, Recorded], checkpoints: Command) -> None:
    done = checkpoints("restore", LOAD, RUN, "--item", "payments", "--from", "chk-2", "--yes")
    assert done.code == 0, done.err
    assert f"the next attempt of {LOAD}, item payments starts from chk-2" in done.out
    branches = {item: recorded.coordinator.journal.catch_up().branch.number for item, recorded in tables.items()}
    assert branches == {"orders": 0, "payments": 1}


def test_prune_takes_all_items(tables: dict[str, Recorded], checkpoints: Command) -> None:
    for recorded in tables.values():
        recorded.store.create(f"{recorded.keys.prefix}/chk-1/acks/-", b"left by an attempt that is over")
    data = json.loads(checkpoints("prune", LOAD, "--dry-run", "-o", "json").out)
    assert {row["item"] for row in data} == {"orders", "payments"}
    data = json.loads(checkpoints("prune", LOAD, "--item", "orders", "--dry-run", "-o", "json").out)
    assert {row["item"] for row in data} == {"orders"}


def test_checkpoint_of_an_item_is_triggered(store: LocalStore, checkpoints: Command) -> None:
    job = Job(store, LOAD, RUN, "orders")
    job.start(run=RUN)
    job.beat()
    done = checkpoints("trigger", LOAD, RUN, "--item", "orders", "--no-wait")
    assert done.code == 0, done.err
    assert [checkpoint.request.origin for checkpoint in job.state.pending] == ["cli"]


@pytest.mark.parametrize("item", ["--yes", "a b", "'"])
def test_item_that_looks_like_an_option_is_an_item(store: LocalStore, checkpoints: Command, item: str) -> None:
    recorded = Recorded(store, LOAD, RUN, item)
    three_stages(recorded)
    state = recorded.state
    for command in (show(state, RUN), restore(state, "latest", "--dry-run"), list_of(LOAD, state)):
        words = shlex.split(command)
        assert words[:2] == ["airflow", "checkpoints"]
        done = checkpoints(*words[2:])
        assert done.code == 0, (command, done.err)


def test_items_that_runs_share_are_found_by_their_runs(store: LocalStore, checkpoints: Command) -> None:
    for item in ("orders", "payments"):
        recorded = Recorded(store, LOAD, "", item)
        recorded.started("19:00:00", run="scheduled__2026-11-19")
        recorded.stage("clean", "19:10:00", "19:10:02", work_s=540, kib=4)
        recorded.ended("19:10:03")
    assert checkpoints("show", LOAD, "scheduled__2026-11-19", "--item", "orders").code == 0
    done = checkpoints("show", LOAD, "scheduled__2026-11-19")
    assert (done.code, "orders, payments" in done.err) == (2, True)
    rows = json.loads(checkpoints("list", LOAD, "scheduled__2026-11-19", "-o", "json").out)
    assert {row["item"] for row in rows} == {"orders", "payments"}
