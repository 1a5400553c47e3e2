"""A small client of Airflow's REST API: each method is one request or one wait. Runs anywhere."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Collection
from typing import Any

from tests.support.waiting import wait_until

EVERY = 0.5  # seconds between two questions: each costs the API server 20 ms
ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class ApiError(RuntimeError):
    """An answer other than 2xx; ``status`` and ``body`` say which."""

    def __init__(self, request: str, status: int, body: str) -> None:
        super().__init__(f"{request}: {status} {body[:600]}")
        self.status, self.body = status, body


class Client:
    """Anonymous until ``log_in``; that needs the simple auth manager with ``all_admins``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = ""

    def log_in(self) -> None:
        self.token = self.call("GET", "/auth/token")["access_token"]

    def call(self, method: str, path: str, data: object = None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise ApiError(f"{method} {path}", error.code, error.read().decode(errors="replace")) from None

    def write(self, method: str, path: str, data: object, tries: int = 4) -> Any:
        """SQLite has one writer at a time; the others get "Database error" after 5 s and must come again."""
        for left in reversed(range(tries)):
            try:
                return self.call(method, path, data)
            except ApiError as error:
                if error.status != 500 or "Database error" not in error.body or not left:
                    raise
        raise AssertionError("unreachable")

    # -- DAGs and runs -------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, str | None]:
        return {name: part["status"] for name, part in self.call("GET", "/api/v2/monitor/health").items()}

    def import_errors(self) -> dict[str, str]:
        return {e["filename"]: e["stack_trace"] for e in self.call("GET", "/api/v2/importErrors")["import_errors"]}

    def wait_for_dag(self, dag: str, seconds: float = 90) -> None:
        def known() -> bool:
            try:
                return bool(self.call("GET", f"/api/v2/dags/{dag}"))
            except ApiError as error:
                if error.status != 404:
                    raise
                return False

        wait_until(known, seconds, lambda: f"DAG {dag} not seen; import errors: {self.import_errors()}", every=EVERY)

    def trigger(self, dag: str, conf: dict[str, Any] | None = None) -> str:
        """Start a run and return its id. The id is ours, so that a write that was repeated starts one run only."""
        run = f"test__{uuid.uuid4().hex[:12]}"
        data = {"dag_run_id": run, "logical_date": None, "conf": conf or {}}
        try:
            self.write("POST", f"/api/v2/dags/{dag}/dagRuns", data)
        except ApiError as error:
            if error.status != 409:
                raise
        return run

    def wait_for_run(self, dag: str, run: str, seconds: float = 300) -> str:
        def state() -> str:
            answer: str = self.call("GET", _run(dag, run))["state"]
            return answer

        wait_until(
            lambda: state() in ("success", "failed"),
            seconds,
            lambda: f"run {run}: {self.states(dag, run)}",
            every=EVERY,
        )
        return state()

    # -- task instances; `index` is the map index, -1 for a task that is not mapped ------------------------------------

    def states(self, dag: str, run: str) -> dict[str, str | None]:
        tasks = self.call("GET", f"{_run(dag, run)}/taskInstances?limit=100")["task_instances"]
        return {t["task_id"] + (f"[{t['map_index']}]" if t["map_index"] >= 0 else ""): t["state"] for t in tasks}

    def task(self, dag: str, run: str, task: str, index: int = -1) -> dict[str, Any]:
        answer: dict[str, Any] = self.call("GET", _task(dag, run, task, index))
        return answer

    def wait_for_task(
        self, dag: str, run: str, task: str, states: Collection[str] = ENDED, try_number: int = 0, seconds: float = 300
    ) -> dict[str, Any]:
        """Wait until the task is in one of ``states`` with this try number or a higher one."""
        seen: dict[str, Any] = {}

        def there() -> bool:
            seen.update(self.task(dag, run, task))
            return seen["state"] in states and seen["try_number"] >= try_number

        wait_until(
            there,
            seconds,
            lambda: f"{task} is {seen['state']} in try {seen['try_number']}, wanted {states}",
            every=EVERY,
        )
        return seen

    def logs(self, dag: str, run: str, task: str, try_number: int = 1, index: int = -1) -> list[str]:
        """The lines of one try, without times and levels; what spark-submit printed is among them."""
        return [_line(entry) for entry in self.entries(dag, run, task, try_number, index)]

    def entries(self, dag: str, run: str, task: str, try_number: int = 1, index: int = -1) -> list[dict[str, Any]]:
        """The log of one try, with the fields that a page shows beside each line."""
        path = f"{_task(dag, run, task)}/logs/{try_number}?full_content=true&map_index={index}"
        found: list[dict[str, Any]] = self.call("GET", path)["content"]
        return found

    def xcom(self, dag: str, run: str, task: str, key: str = "return_value") -> Any:
        return self.call("GET", f"{_task(dag, run, task)}/xcomEntries/{_quote(key)}?deserialize=false")["value"]

    def store(self, dag: str, run: str, task: str) -> dict[str, Any]:
        """The task state store of one task instance: it survives retries and clears."""
        entries = self.call("GET", f"{_task(dag, run, task)}/state-store")["task_state_store"]
        return {entry["key"]: entry["value"] for entry in entries}

    # -- what a person does --------------------------------------------------------------------------------------------

    def clear(self, dag: str, run: str, *tasks: str) -> None:
        data = {"dry_run": False, "dag_run_id": run, "task_ids": tasks, "only_failed": False, "reset_dag_runs": True}
        self.write("POST", f"/api/v2/dags/{dag}/clearTaskInstances", data)

    def set_task(self, dag: str, run: str, task: str, state: str) -> None:
        """Mark as success, failed or skipped; a running one is killed."""
        self.write("PATCH", _task(dag, run, task), {"new_state": state})


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _run(dag: str, run: str) -> str:
    return f"/api/v2/dags/{_quote(dag)}/dagRuns/{_quote(run)}"


def _task(dag: str, run: str, task: str, index: int = -1) -> str:
    path = f"{_run(dag, run)}/taskInstances/{_quote(task)}"
    return f"{path}/{index}" if index >= 0 else path


def _line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    errors = (f" {detail.get('exc_type')}: {detail.get('exc_value')}" for detail in entry.get("error_detail") or [])
    return f"{entry['event']}{''.join(errors)}"
