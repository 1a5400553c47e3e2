"""On a real Airflow with a real driver: the tab and the link of a task, which follow what happens. In a browser.

That a page tells of a failed attempt is also tested on a recorded history; so the live retry is slow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import FrameLocator, Page, expect

from airflow_checkpoint_provider.cli.request import Names, WaitOptions, WantedCheckpoint, ask
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.kinds import SAVEPOINT
from tests.e2e.lab import PATIENCE, TASK, Lab, Run, kill, wait_gone
from tests.support import screenshots
from tests.support.kafka import Kafka
from tests.support.pages import browser
from tests.support.streams import ROWS, row

pytestmark = pytest.mark.timeout(1800)

ENOUGH = PATIENCE * 1000  # milliseconds
FRAME = "iframe[title=Checkpoints]"


@pytest.mark.slow  # test_pages opens the same page
def test_tab_follows_a_job_from_a_pending_checkpoint_to_its_end(lab: Lab) -> None:
    run = lab.at_two("stages", "three")
    with _tab(lab, run) as (page, tab):
        tab.get_by_text("Details of chk-1").click(timeout=ENOUGH)
        _pending_becomes_completed(tab, run)
        assert tab.locator("#chk-1").get_attribute("open") is not None  # it is as the viewer left it
        _links_lead_to_the_log(page, tab)
        _link_leads_to_the_job(page, run)
        run.open("three")
        _says(page.frame_locator(FRAME), "h1 .label", "finished")
        page.goto(f"{lab.stack.url}/plugin/checkpoints")
        _says(page.frame_locator(FRAME), "main", run.history.job)


@pytest.mark.slow
def test_tab_follows_a_failure_and_a_retry(lab: Lab) -> None:
    run = lab.at_two("stages_s3", "three")  # its connection is in the database
    with _tab(lab, run) as (page, tab):
        run.open("two")
        run.wait_at("three")
        driver = run.driver()
        kill(driver)
        wait_gone(driver)
        _says(tab, "#attempt-2-2 pre", "event       retry: attempt 1 failed")
        _says(tab, "#attempt-2-2 pre", "CHOSEN")
        tab.locator("h1").scroll_into_view_if_needed()
        page.set_viewport_size({"width": 1280, "height": 1300})  # the story is in it
        taken = screenshots.folder(lab.folder("screenshots")) / "tab.png"
        page.screenshot(path=taken)
        screenshots.note(taken)
        page.goto(f"{lab.stack.url}/plugin/checkpoints")
        _says(page.frame_locator(FRAME), "main", run.history.job)  # one of several tables
        run.open("three")
        run.ended("success", 2)


@contextmanager
def _tab(lab: Lab, run: Run) -> Iterator[tuple[Page, FrameLocator]]:
    """Open the tab of the run's task in a browser. Yield Airflow's page, and ours in it."""
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{lab.stack.url}/{_task(run)}/plugin/task-checkpoints")
        tab = page.frame_locator(FRAME)
        _says(tab, "h1", run.history.job)
        yield page, tab


@pytest.mark.slow
def test_page_shows_what_a_query_does(lab: Lab, tmp_path: Path) -> None:
    """It reads Kafka, because other sources do not count the rows that they still have."""
    with Kafka(tmp_path / "kafka") as kafka:
        kafka.create("orders")
        kafka.send("orders", (json.dumps(row(file, number)) for file in range(200) for number in range(ROWS)))
        environment = kafka.environment()
        servers, classpath = environment["STREAM_KAFKA"], environment["SPARK_DIST_CLASSPATH"]
        run = lab.start("reads_kafka", history=History("reads_kafka.job"), kafka=servers, classpath=classpath)
        run.wait_running(1)
        with _tab(lab, run) as (_, tab):
            _query_is_shown(tab)
            _savepoint_is_shown(tab, run)
            configuration = tab.locator("section[aria-labelledby=configuration]")
            assert "not in force" not in configuration.inner_text()
            run.mark_failed()
            expect(configuration).to_contain_text("24 h, not in force (no query runs)", timeout=ENOUGH)
            expect(tab.locator("section[aria-labelledby=queries]")).to_have_count(0, timeout=ENOUGH)


def _query_is_shown(tab: FrameLocator) -> None:
    """Spark reads 60 rows in each batch, so it is behind for a hundred batches."""
    shown = {
        "Rows behind": r"[1-9]\d*",
        "Newest batch": r"batch \d+",
        "Rows/s in": r"\d+\.\d",
        "Rows/s done": r"\d+\.\d",
        "State rows": r"[1-9]\d*",
        "State": r"\d+(\.\d)? (B|KiB|MiB)",
    }
    table = tab.locator("section[aria-labelledby=queries] table")
    expect(table.locator("tbody th")).to_have_text("rows", timeout=ENOUGH)
    header = [name.strip().capitalize() for name in table.locator("thead th").all_inner_texts()]
    for name, text in shown.items():
        cell = table.locator("tbody tr > *").nth(header.index(name))
        expect(cell).to_have_text(re.compile(f"^{text}$"), timeout=ENOUGH)


def _savepoint_is_shown(tab: FrameLocator, run: Run) -> None:
    report = ask(run.store, Names(run.history.job), WantedCheckpoint(kind=SAVEPOINT), WaitOptions(seconds=PATIENCE))
    saved = tab.locator(f"tr:has(> th:text-is('chk-{report.data['id']}'))")
    for text in ("savepoint", "completed"):
        expect(saved).to_contain_text(text, timeout=ENOUGH)
    details = tab.locator(f"#chk-{report.data['id']}")
    details.locator("summary").click(timeout=ENOUGH)
    expect(details.get_by_role("row", name=re.compile(r"^rows query .* batch \d+"))).to_be_visible(timeout=ENOUGH)
    expect(details).to_contain_text(f"airflow checkpoints dispose {report.data['pointer']} --dry-run")


def _pending_becomes_completed(tab: FrameLocator, run: Run) -> None:
    """Nobody loads the page again meanwhile."""
    request = Request(token="people|test", origin="people")
    number = Coordinator(run.lab.journal(run.history)).trigger(request, run=run.id)
    _says(tab, ".pending", f"chk-{number}")
    _says(tab, ".pending", "waits for the acknowledgement of the driver")
    run.open("two")
    expect(tab.locator(".pending")).to_have_count(0, timeout=ENOUGH)
    _says(tab, f"tr:has(> th:text-is('chk-{number}'))", "completed")


def _links_lead_to_the_log(page: Page, tab: FrameLocator) -> None:
    """By Airflow's own pages of a task and its try."""
    tab.get_by_role("link", name="task and log of try 1").first.click(timeout=ENOUGH)
    page.wait_for_url(f"**/tasks/{TASK}?try_number=1", timeout=ENOUGH)
    expect(page.get_by_text("chk-1 completed at stage").first).to_be_visible(timeout=ENOUGH)


def _link_leads_to_the_job(page: Page, run: Run) -> None:
    """While the task runs. Airflow shows the links of a task beside its details."""
    page.goto(f"{run.lab.stack.url}/{_task(run)}/details")
    page.locator("a[href^='plugin/checkpoints/']").click(timeout=ENOUGH)
    page.wait_for_url("**/plugin/checkpoints/checkpoints/job**", timeout=ENOUGH)
    _says(page.frame_locator(FRAME), "h1", run.history.job)


def _says(frame: FrameLocator, element: str, text: str) -> None:
    expect(frame.locator(element).first).to_contain_text(text, timeout=ENOUGH)


def _task(run: Run) -> str:
    return f"dags/{run.dag}/runs/{quote(run.id)}/tasks/{TASK}"
