"""On a real Airflow: keys of a store in S3 stand nowhere but in the environment of the driver's own processes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.lab import KEY_ID, SECRET, TASK, TOKEN, Lab, Run
from tests.support import processes

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.slow  # test_steps looks for secrets without Spark, test_on_s3 in a driver
def test_keys_are_shown_nowhere(lab: Lab) -> None:
    run = lab.start("secrets_s3", "two")
    run.wait_at("two")
    seen = dict(_while_it_runs(run))
    run.open("two")
    run.ended("success", 1)
    seen |= _afterwards(run)
    assert [where for where, text in seen.items() if SECRET in text or TOKEN in text] == []
    assert KEY_ID not in seen["arguments"]
    assert "spark.checkpointed.s3.endpoint" in seen["spark's page"], "it is the page of the right driver"
    assert f"fs.s3a.bucket.{lab.s3.bucket}.secret.key" in seen["spark's page"], "with the conf that holds the secret"
    assert "SPARK_DIST_CLASSPATH" in seen["a python worker"]


def _while_it_runs(run: Run) -> Iterator[tuple[str, str]]:
    everybody = processes.find(lambda _: True)
    yield "arguments", "\n".join(" ".join(processes.command(pid)) for pid in everybody)
    workers = [pid for pid in processes.find(lambda _: True) if "pyspark.daemon" in processes.command(pid)]
    assert workers
    yield "python workers", "\n".join(line for pid in workers for line in processes.environment(pid))
    yield "a python worker", (run.folder / "worker").read_text()
    page = (run.folder / "ui").read_text()
    yield "spark's page", _get(f"{page}/environment")
    yield "spark's page for people", _get(f"{page.partition('/api/')[0]}/environment/")


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:
        text: str = answer.read().decode()
    return text


def _afterwards(run: Run) -> dict[str, str]:
    task = f"/api/v2/dags/{run.dag}/dagRuns/{run.id}/taskInstances/{TASK}"
    entries = run.client.call("GET", f"{task}/xcomEntries")["xcom_entries"]
    seen = {f"xcom {one['key']}": json.dumps(run.client.xcom(run.dag, run.id, TASK, one["key"])) for one in entries}
    assert seen
    rendered = run.client.call("GET", task)["rendered_fields"]
    assert "conf" in rendered
    home = run.lab.stack.home
    logs = [path.read_text(errors="replace") for path in (*home.rglob("*.log"), *run.folder.rglob("events/1/*"))]
    objects = {one.key: run.store.read(one.key) or b"" for one in run.store.list(run.history.prefix)}
    assert any("fs.s3a.bucket" in text for text in logs), "the event log has the confs"
    return {
        **seen,
        **{key: body.decode(errors="replace") for key, body in objects.items()},
        "log": run.log(1), "rendered": json.dumps(rendered), "state store": json.dumps(run.client.store(run.dag, run.id, TASK)),
        "logs": "\n".join(logs),
    }  # fmt: skip
