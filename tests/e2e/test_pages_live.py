"""On a real Airflow with a real driver: the tab and the link of a task, which follow what happens. In a browser."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import FrameLocator, Page, expect

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.protocol.events import Request
from tests.e2e.lab import PATIENCE, TASK, Lab, Run, kill, wait_gone
from tests.support.pages import browser, screenshots

pytestmark = pytest.mark.timeout(1800)

ENOUGH = PATIENCE * 1000  # milliseconds
FRAME = "iframe[title=Checkpoints]"


def test_tab_follows_a_job_through_a_pending_checkpoint_a_failure_and_a_retry(lab: Lab) -> None:
    run = lab.at_two("stages_s3", "three")  # its connection is in the database
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{lab.stack.url}/{_task(run)}/plugin/task-checkpoints")
        tab = page.frame_locator(FRAME)
        _says(tab, "h1", f"{run.dag}.{TASK}")
        tab.get_by_text("Details of chk-1").click(timeout=ENOUGH)
        _pending_becomes_completed(tab, run)
        assert tab.locator("#chk-1").get_attribute("open") is not None  # it is as the viewer left it

        run.wait_at("three")
        driver = run.driver()
        kill(driver)
        wait_gone(driver)
        _says(tab, "#attempt-2-2 pre", "event       retry: attempt 1 failed")
        _says(tab, "#attempt-2-2 pre", "CHOSEN")
        tab.locator("h1").scroll_into_view_if_needed()
        page.screenshot(path=screenshots(lab.folder("screenshots")) / "tab.png")
        _link_leads_to_the_job(page, run)
        run.open("three")
        run.ended("success", 2)
        _says(page.frame_locator(FRAME), "h1 .label", "finished")
        page.goto(f"{lab.stack.url}/plugin/checkpoints")
        _says(page.frame_locator(FRAME), "main", f"{run.dag}.{TASK}")  # one of several tables


def _pending_becomes_completed(tab: FrameLocator, run: Run) -> None:
    """Nobody loads the page again meanwhile."""
    request = Request(token="people|test", origin="people")
    number = Coordinator(run.lab.journal(run.history)).trigger(request, run=run.id)
    _says(tab, ".pending", f"chk-{number}")
    _says(tab, ".pending", "waits for the acknowledgement of the driver")
    run.open("two")
    expect(tab.locator(".pending")).to_have_count(0, timeout=ENOUGH)
    _says(tab, f"tr:has(> th:text-is('chk-{number}'))", "completed")


def _link_leads_to_the_job(page: Page, run: Run) -> None:
    """While the task runs. Airflow shows the links of a task beside its details."""
    page.goto(f"{run.lab.stack.url}/{_task(run)}/details")
    page.locator("a[href^='plugin/checkpoints/']").click(timeout=ENOUGH)
    page.wait_for_url("**/plugin/checkpoints/checkpoints/job**", timeout=ENOUGH)
    _says(page.frame_locator(FRAME), "h1", f"{run.dag}.{TASK}")


def _says(frame: FrameLocator, element: str, text: str) -> None:
    expect(frame.locator(element).first).to_contain_text(text, timeout=ENOUGH)


def _task(run: Run) -> str:
    return f"dags/{run.dag}/runs/{quote(run.id)}/tasks/{TASK}"
