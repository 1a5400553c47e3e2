"""The pages below ``/checkpoints``: GET only, by Airflow's own permissions. Runs in Airflow (API server)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    CheckpointNotFound,
    InvalidName,
    StoreDenied,
    StoreUnavailable,
    meaning,
    printable,
)
from airflow_checkpoint_provider.hooks.connections import SELDOM, ConnectionNotNamed, NoConnection
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.protocol.keys import check_prefix
from airflow_checkpoint_provider.ui import charts, connections, listing
from airflow_checkpoint_provider.ui.access import Viewer
from airflow_checkpoint_provider.ui.polling import EVERY, HistoryReading, Polls
from airflow_checkpoint_provider.ui.threads import USER, in_thread
from airflow_checkpoint_provider.ui.views.checkpoints import Values, checkpoint_row, files_page
from airflow_checkpoint_provider.ui.views.commands import Commands
from airflow_checkpoint_provider.ui.views.job import drawn, job_page, with_values

HERE = Path(__file__).parent
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-ancestors 'self';"
    " base-uri 'none'; form-action 'none'"
)
IMAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"  # a chart has its style inside
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
THEMES = ("light", "dark")
LONG = 7  # digits of a map index that no task has
MOST_PARTS = 10_000  # of the list of jobs
NO_ADDRESS = "This is not the address of a page"
ABSENT = "jobs/-/job"  # a history that nobody has


@dataclass
class Problem(Exception):
    """A page that shows an error, instead of the requested page."""

    status: int
    title: str
    text: str
    code: str = ""


def _not_found() -> Problem:
    """Return the same answer for a history that does not exist and for one that the user may not see."""
    text = (
        "There is no such history, or it is damaged, or you may not read each DAG that it belongs to, or these are too many, or the"
        " pages do not open its connection. An administrator can see which of these it is."
    )
    return Problem(404, "Not found", text)


def build(polls: Polls | None = None) -> FastAPI:
    """Return the pages as an application. A test passes its own ``polls``."""
    app = FastAPI(title="Checkpoints", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.polls = polls or Polls(connections.open_store)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    app.get("/jobs")(jobs)
    app.get("/job")(job)
    app.get("/task")(task)
    app.get("/files")(files)
    app.get("/charts/{name}-{theme}.svg")(chart)
    app.middleware("http")(_with_headers)
    app.exception_handler(Problem)(_say_problem)
    app.exception_handler(ConnectionNotNamed)(_say_not_named)
    app.exception_handler(HTTPException)(_say_refusal)
    app.exception_handler(RequestValidationError)(_say_invalid)
    app.exception_handler(Exception)(_say_failure)
    return app


# -- what a request has --------------------------------------------------------------------------------------------------
# These are coroutines: FastAPI calls any other function in a thread that serves Airflow's own answers.


async def _viewer(user: GetUserDep) -> Viewer:
    USER.set(user.get_id())
    return Viewer(user)


async def _polls(request: Request) -> Polls:
    polls: Polls = request.app.state.polls
    return polls


ViewerDep = Annotated[Viewer, Depends(_viewer)]
PollsDep = Annotated[Polls, Depends(_polls)]


async def _reference(viewer: ViewerDep, connection: str, history: str, run: str = "") -> HistoryReference:
    """Return the history that an address names, if the user may ask for it: no storage is asked before."""
    reference = _checked(HistoryReference(connection, history, run))
    if not await in_thread(viewer.reads_any):
        raise _not_found()
    if connection not in connections.named() and not await in_thread(viewer.administers, connection):
        raise _not_found()
    connections.check_named(connection)
    return reference


def _checked(reference: HistoryReference) -> HistoryReference:
    try:
        check_prefix(reference.history)
    except InvalidName as error:
        raise Problem(400, NO_ADDRESS, error.message, error.code) from None
    return reference


ReferenceDep = Annotated[HistoryReference, Depends(_reference)]


# -- the pages -----------------------------------------------------------------------------------------------------------


async def jobs(
    request: Request, viewer: ViewerDep, polls: PollsDep, part: Annotated[int, Query(ge=1, le=MOST_PARTS)] = 1
) -> Response:
    """Show the newest run of each job that the user may see, of the jobs of one part of the list."""
    page = await listing.jobs_page(polls, viewer, part)
    return await _page(request, "jobs.html", page=page, part=part, jobs=listing.JOBS, every=_pace(page.moves))


async def job(request: Request, reference: ReferenceDep, viewer: ViewerDep, polls: PollsDep) -> Response:
    """Show a history."""
    return await _job(request, reference, viewer, polls)


async def task(
    request: Request, dag: str, run: str, task: str, viewer: ViewerDep, polls: PollsDep, map_index: str = "-1"
) -> Response:
    """Show the history that a task works on, as the task's link names it."""
    index = int(map_index) if map_index.isdecimal() and len(map_index) < LONG else -1
    if not await in_thread(viewer.reads, dag):
        raise _not_found()
    reference = await in_thread(connections.reference_of, dag, run, task, index)
    if reference is None:
        over = await in_thread(connections.has_ended, dag, run, task, index)
        every = None if over else EVERY
        return await _page(request, "nothing.html", dag=dag, run=run, task=task, over=over, every=every)
    connections.check_named(reference.connection)
    return await _job(request, _checked(reference), viewer, polls)


async def files(
    request: Request,
    reference: ReferenceDep,
    number: Annotated[int, Query(alias="id")],
    viewer: ViewerDep,
    polls: PollsDep,
) -> Response:
    """Show the files of a checkpoint."""
    reading = await _read(reference, viewer, polls)
    checkpoint = reading.found.state.checkpoint(number)
    if checkpoint is None:
        raise _not_found()
    seal = await _readable(
        reference, viewer, polls, lambda: polls.seal(reference.connection, reference.history, number), known=True
    )
    row = await in_thread(checkpoint_row, reading, checkpoint, Commands(reference.connection, reading.found.state))
    page = await in_thread(files_page, row, seal)
    return await _page(request, "files.html", page=page, reference=reference)


async def chart(name: str, theme: str, reference: ReferenceDep, viewer: ViewerDep, polls: PollsDep) -> Response:
    """Draw a chart of a history. A browser does not keep it for its next user; a page that stays open keeps its charts."""
    if name not in charts.DRAWINGS or theme not in THEMES:
        raise _not_found()
    reading = await _read(reference, viewer, polls)
    state = drawn(reading, utc_now())
    image = await in_thread(charts.DRAWINGS[name], state, reference.run, theme)
    return Response(image, media_type="image/svg+xml", headers={"Content-Security-Policy": IMAGE_POLICY})


async def _job(request: Request, reference: HistoryReference, viewer: Viewer, polls: Polls) -> Response:
    reading = await _read(reference, viewer, polls)
    values = await _values(reference, reading, polls)
    page = await in_thread(job_page, reference, reading, utc_now(), values)
    others = await listing.other_runs(polls, viewer, reference, reading)
    return await _page(request, "job.html", page=page, others=others, reference=reference, every=_pace(page.moves))


async def _values(reference: HistoryReference, reading: HistoryReading, polls: Polls) -> Values:
    """Return the values of the newest checkpoints; without those that cannot be read now, or are just being deleted."""
    numbers = await in_thread(with_values, reading.found.state, reference.run)
    answers = await asyncio.gather(
        *(polls.values(reference.connection, reference.history, number) for number in numbers), return_exceptions=True
    )
    return {number: answer for number, answer in zip(numbers, answers, strict=True) if isinstance(answer, dict)}


def _pace(moves: bool) -> float:
    """Return after how many seconds a page is fetched again. A run may start also where nothing moves now."""
    return EVERY if moves else SELDOM


# -- reading -------------------------------------------------------------------------------------------------------------


async def _read(reference: HistoryReference, viewer: Viewer, polls: Polls) -> HistoryReading:
    """Return a history. Raise ``Problem``: the same one if there is none, or the user may not see it."""
    reading: HistoryReading = await _readable(
        reference, viewer, polls, lambda: polls.history(reference.connection, reference.history)
    )
    if not await in_thread(viewer.sees, reading.found.state, reference.connection):
        raise _not_found()
    return reading


async def _readable(
    reference: HistoryReference,
    viewer: Viewer,
    polls: Polls,
    read: Callable[[], Awaitable[Any]],
    *,
    known: bool = False,
) -> Any:
    """Return what ``read`` returns; raise its error as a page.

    The text of an error may quote stored data. A user who does not administer the connection gets only the meaning of its code. Unless the
    user already knows that there is such a history (``known``), only an error of the whole storage is shown.
    """
    try:
        return await read()
    except CheckpointError as error:
        full = await in_thread(viewer.administers, reference.connection)
        if not (full or known or await _fails_for_all(polls, reference.connection, error)):
            raise _not_found() from None
        status = 404 if isinstance(error, CheckpointNotFound | NoConnection) else 503
        text = error.message if full else meaning(type(error))
        raise Problem(status, "The history cannot be read", text, error.code) from None


async def _fails_for_all(polls: Polls, connection: str, error: CheckpointError) -> bool:
    """Return whether a history that does not exist would fail too. An error of one history would tell that it exists."""
    if not isinstance(error, StoreUnavailable | StoreDenied):
        return False
    try:
        await polls.history(connection, ABSENT)
    except CheckpointError as other:
        return isinstance(other, StoreUnavailable | StoreDenied)
    return False


# -- answering -----------------------------------------------------------------------------------------------------------


def _shown(value: object) -> object:
    """Return a text with an escape for each letter that is not printable: a terminal obeys some of them when a person pastes the text."""
    return "\n".join(map(printable, value.split("\n"))) if type(value) is str else value


def _environment() -> Environment:
    loader = PackageLoader("airflow_checkpoint_provider.ui")
    environment = Environment(
        loader=loader,
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals |= {"version": __version__, "every": None, "themes": THEMES, "charts": charts}
    return environment


_TEMPLATES = _environment()


def _rendered(template: str, values: dict[str, Any]) -> str:
    return _TEMPLATES.get_template(template).render(values)


async def _page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page; without its text if the browser has the same one."""
    html = await in_thread(_rendered, template, values)
    tag = f'"{hashlib.sha256(html.encode()).hexdigest()[:32]}"'
    if status == 200 and request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return HTMLResponse(html, status, headers={"ETag": tag})


async def _with_headers(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
    return _secured(await call(request))


def _secured(response: Response) -> Response:
    for name, value in {**HEADERS, "Content-Security-Policy": PAGE_POLICY}.items():
        response.headers.setdefault(name, value)
    return response


async def _say_problem(request: Request, problem: Any) -> Response:
    return await _page(
        request, "problem.html", status=problem.status, problem=problem, every=EVERY if problem.status == 503 else None
    )


async def _say_not_named(request: Request, error: Any) -> Response:
    return await _say_problem(request, Problem(404, "The pages do not open this connection", error.message, error.code))


async def _say_refusal(request: Request, error: Any) -> Response:
    """Say that nobody is logged in, as Airflow answers, or that there is no such page."""
    texts = {401: "Log in to Airflow, then open this page again.", 403: "You may not see this."}
    problem = Problem(error.status_code, error.detail, texts.get(error.status_code, "There is no such page."))
    return await _say_problem(request, problem)


async def _say_invalid(request: Request, error: Any) -> Response:
    wrong = ", ".join(str(each["loc"][-1]) for each in error.errors())
    return await _say_problem(request, Problem(400, NO_ADDRESS, f"Missing or wrong in the address: {wrong}."))


async def _say_failure(request: Request, error: Exception) -> Response:
    """Answer an unexpected error, which goes on to the log of the API server."""
    problem = Problem(500, "This page failed", "The log of the API server says why.", CheckpointError.code)
    return _secured(await _say_problem(request, problem))  # this answer passes no middleware
