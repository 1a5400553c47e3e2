"""The pages in Airflow's API server over recorded histories, and a browser. Runs on Linux with Chromium."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from airflow_checkpoint_provider.storage import S3Store, Store
from tests.support.recorded import Recorded, second_attempt, three_stages
from tests.support.s3server import Key, S3Server, reading
from tests.support.stack import PROJECT, Stack

USERS = {"admin": "admin", "viewer": "viewer", "flights": "viewer", "stranger": "viewer"}
HOSTILE = "<script>alert(1)</script>"
FLIGHTS = "flights_etl.delays"
STREAM = "orders_stream.totals"
SCRIPT = "by_hand"
BROKEN = "broken_dag.job"
SECRET = "secret-of-the-store"


def save_histories(store: Store) -> None:
    """Write a run with a failed attempt, a job that runs, one of a script without Airflow, and one that is damaged."""
    flights = Recorded(store, FLIGHTS)
    three_stages(flights)
    flights.aborted(4, "02:55:00", "expired", HOSTILE)
    flights.ended("02:56:00", "failed", 137, "task")
    second_attempt(flights)
    stream = Recorded(store, STREAM, scope="")
    stream.started("22:00:20", run="scheduled__2026-11-20")
    stream.stage("clean", "22:10:00", "22:10:03", work_s=500, kib=30)
    stream.triggered("stage 'totals'", "22:20:00")
    Recorded(store, SCRIPT).started("22:00:20")  # no dot: no DAG
    broken = Recorded(store, BROKEN)
    broken.started("22:00:20")
    entry = broken.keys.entry(1)
    store.overwrite(entry, (store.read(entry) or b"")[:-20])


@dataclass(frozen=True)
class Pages:
    """The pages of an API server. ``tokens`` are those of the users, ``s3`` holds the histories."""

    url: str
    tokens: dict[str, str]
    s3: S3Server

    def get(self, path: str, user: str | None = "admin", **options: object) -> httpx.Response:
        cookies = {"_token": self.tokens[user]} if user else {}
        return httpx.get(f"{self.url}{path}", cookies=cookies, timeout=60, **options)  # type: ignore[arg-type]


@contextmanager
def serving(home: Path) -> Iterator[Pages]:
    """Run an API server whose users are ``USERS``, with a connection to recorded histories and one that never answers."""
    home.mkdir(parents=True, exist_ok=True)
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({user: f"password of {user}" for user in USERS}))
    with S3Server() as s3, socket.create_server(("127.0.0.1", 0)) as silent:  # that one accepts, and says nothing
        s3.keys["READER"] = Key(SECRET, may=reading)
        s3.make_bucket("lake")
        save_histories(S3Store("lake", "checkpoints", s3.settings()))
        env = _environment(s3.url, passwords, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with Stack(home / "airflow", home / "dags", env, only=["api-server"]) as stack:
            yield Pages(stack.url, {user: _token(stack.url, user) for user in USERS}, s3)


def _connection(url: str) -> str:
    """Return a connection whose key may read, and nothing else: the pages need no more."""
    where = {"root": "s3://lake/checkpoints", "endpoint_url": url}
    return json.dumps({"conn_type": "checkpoint_storage", "login": "READER", "password": SECRET, "extra": where})


def _environment(url: str, passwords: Path, silent: str) -> dict[str, str]:
    return {
        "AIRFLOW_CONN_CHECKPOINT_DEFAULT": _connection(url),
        "AIRFLOW_CONN_SILENT": _connection(silent),
        "AIRFLOW__CHECKPOINTS__CONNECTIONS": "checkpoint_default,silent",
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.support.auth.PerDagAuthManager",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "PYTHONPATH": str(PROJECT),
    }


def _token(url: str, user: str) -> str:
    answer = httpx.post(f"{url}/auth/token", json={"username": user, "password": f"password of {user}"}, timeout=60)
    token: str = answer.raise_for_status().json()["access_token"]
    return token


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Debian's Chromium, which is on the PATH."""
    program = shutil.which("chromium")
    assert program, "chromium is not installed; `make` installs it"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])  # for root
        try:
            yield chromium
        finally:
            chromium.close()


def signed_in(chromium: Browser, pages: Pages, user: str = "admin", **options: object) -> BrowserContext:
    """Return a window of a user."""
    context = chromium.new_context(**options)  # type: ignore[arg-type]
    context.add_cookies([{"name": "_token", "value": pages.tokens[user], "url": pages.url}])
    return context
