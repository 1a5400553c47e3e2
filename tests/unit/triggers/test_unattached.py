"""A deferred task whose application is queued in YARN: its trigger asks the resource manager, and wakes the task only if it must look."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest

from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.triggers import _unattached
from airflow_checkpoint_provider.triggers._unattached import Unattached
from tests.support.resource_manager import ResourceManager, resource_manager

APPLICATION, PASSWORD = "application_1795739932863_0001", "tell-nobody"


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResourceManager]:
    monkeypatch.setattr(_unattached, "FIRST", 0.0)
    monkeypatch.setattr(_unattached, "EVERY", 0.0)
    with resource_manager() as manager:
        leads_to(monkeypatch, manager.url)
        yield manager


def leads_to(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    extra = {"yarn_resourcemanager_webapp_address": address} if address else {}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))


def waits(lines: list[str], patience: float = 0.0) -> Unattached:
    return Unattached("yarn", APPLICATION, patience, lines.append)


@pytest.mark.parametrize("state", ["NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"])
def test_application_that_lives_lets_the_task_sleep_beyond_its_patience(manager: ResourceManager, state: str) -> None:
    manager.state, lines = state, list[str]()
    waiting = waits(lines, patience=0.05)
    assert not any(waiting.over(State()) for _ in range(20))
    assert manager.asked == [f"/ws/v1/cluster/apps/{APPLICATION}"] * 20
    (line,) = lines
    assert line.endswith(f"no sign of the driver yet; the cluster manager says {state} of {APPLICATION}  [CKP116]")


@pytest.mark.parametrize(("patience", "every"), [(60.0, 30), (12.0, 6)])
def test_manager_is_asked_before_the_patience_ends(
    manager: ResourceManager, monkeypatch: pytest.MonkeyPatch, patience: float, every: int
) -> None:
    clock = count()
    monkeypatch.setattr(_unattached, "FIRST", 10.0)
    monkeypatch.setattr(_unattached, "EVERY", 30.0)
    monkeypatch.setattr(_unattached, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    waiting = waits([], patience)
    while next(clock) < 600:
        assert not waiting.over(State())
    assert 300 // every <= len(manager.asked) <= 600 // every


def test_change_of_the_state_is_said(manager: ResourceManager) -> None:
    lines: list[str] = []
    waiting = waits(lines, patience=60)
    for state in ("ACCEPTED", "ACCEPTED", "RUNNING"):
        manager.state = state
        assert not waiting.over(State())
    assert [line.split(" says ")[1].split()[0] for line in lines] == ["ACCEPTED", "RUNNING"]


@pytest.mark.parametrize("state", ["FINISHED", "FAILED", "KILLED"])
def test_application_that_has_ended_wakes_the_task_at_once(manager: ResourceManager, state: str) -> None:
    waiting = waits([], patience=600)
    assert not waiting.over(State())
    manager.state = state
    assert waiting.over(State())


def test_application_that_is_not_known_for_a_while_wakes_the_task(
    manager: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resource manager that starts has not recovered its applications at once."""
    lines: list[str] = []
    waiting = waits(lines, patience=600)
    for state in ("ACCEPTED", None, "ACCEPTED", None):
        manager.state = state
        assert not waiting.over(State())
    assert "the cluster manager says NOT KNOWN" in lines[-1]
    monkeypatch.setattr(_unattached, "FORGOTTEN", 0.0)
    assert waiting.over(State())


def test_manager_that_gives_no_answer_is_left_to_the_task(
    manager: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that wants a login. The line holds nothing of the address, in which a password may stand."""
    lines: list[str] = []
    manager.login = True
    leads_to(monkeypatch, manager.url.replace("http://", f"http://ann:{PASSWORD}@"))
    assert not waits(lines, patience=60).over(State())
    assert waits(lines).over(State())
    assert all("YARN's resource manager gave no answer (HTTPError); asking again  [CKP116]" in line for line in lines)
    assert PASSWORD not in str(lines)


def test_another_server_that_knows_no_such_page_does_not_end_the_application(
    manager: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "answer", lambda path: (404, "no such page"))
    assert not waits([], patience=60).over(State())


def test_manager_that_does_not_listen_is_named(manager: ResourceManager, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    leads_to(monkeypatch, "127.0.0.1:1")
    assert waits(lines).over(State())
    assert "(ConnectionError)" in lines[0]


def test_connection_without_the_address_leaves_all_to_the_task(
    manager: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    leads_to(monkeypatch, None)
    waiting = waits(lines, patience=60)
    assert not any(waiting.over(State()) for _ in range(3))
    assert waits(lines).over(State())
    assert lines == []


def test_elsewhere_than_on_yarn_nobody_is_asked(manager: ResourceManager) -> None:
    assert Unattached("", "", 0.0, print).over(State())
    assert not Unattached("", "", 60.0, print).over(State())
    assert manager.asked == []
