"""Texts of stored data that tries to forge a line of a log or to steer a terminal. Runs anywhere."""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress
from airflow_checkpoint_provider.coordinator.older_runs import OlderRun
from airflow_checkpoint_provider.coordinator.restore import Restored, candidates_at_start
from airflow_checkpoint_provider.coordinator.restore_target import GoingBack
from airflow_checkpoint_provider.errors import CheckpointError, StoreUnavailable
from airflow_checkpoint_provider.location.restored_files import ReadAgain
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch, Run
from airflow_checkpoint_provider.protocol.metadata import StateEntry, StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import Edge, QueryDetail
from airflow_checkpoint_provider.protocol.state import Closing, State
from airflow_checkpoint_provider.protocol.tries import Tries
from airflow_checkpoint_provider.text import (
    health,
    launch_messages,
    manual_restore,
    messages,
    query_messages,
    query_progress,
    restore_age,
    restore_story,
    source_messages,
    state_messages,
    summary_table,
    tries,
)
from tests.fuzz.hostile import HOSTILE, OBJECTS, planted_everywhere

MODULES = (
    launch_messages,
    manual_restore,
    messages,
    query_messages,
    query_progress,
    restore_story,
    source_messages,
    state_messages,
    summary_table,
)
ELSEWHERE = {  # what becomes of these texts
    *(
        "ended_after_stop",
        "left_by_restore",
        "not_stopped",
        "nothing_to_stop",
        "queries_have_run",
        "superseded",
        "will_not_complete",
    ),  # an error
    *("application_line", "computed_imports", "settings_alone", "too_many_modules"),  # a line that the driver prints
    *("statistics",),  # lines of the command line
    *(
        "brief",
        "next_start",
        "refusal_in",
        "request",
        "savepoint",
        "status",
    ),  # a part of another text, or not for people
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{module.__name__.rpartition('.')[2]}.{name}": function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    and name[0] != "_"
    and name not in ELSEWHERE
    and typing.get_type_hints(function)["return"] in (str, list[str])
}


STATES = [
    State.from_json(planted_everywhere(name)["snapshot"]) for name in OBJECTS if name.startswith("entry-boundary")
]
BEAT = Beat(
    activity=HOSTILE,
    application_change=HOSTILE,
    reused=(HOSTILE,),
    attached_at="2026-11-20T00:00:00Z",
    queries=(QueryProgress(uid=HOSTILE, batch=7),),
)
ERROR = StoreUnavailable(HOSTILE)
SAVED = [
    QueryDetail(location="query/q/1-a", batch=7, begun=7, sink=sink, path=HOSTILE, sources={}, watermark_ms=0)
    for sink in ("parquet", "delta", HOSTILE)
]


def values(hint: Any, state: State) -> list[Any]:
    """Return arguments of this type: all that ``state`` has, or hostile ones."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in arguments:
        return [value for part in arguments if part is not types.NoneType for value in values(part, state)] + [None]
    if origin is not None:
        several = values(arguments[0], state)
        return [{HOSTILE: HOSTILE}] if issubclass(origin, Mapping) else [several] if several else []
    choices: dict[Any, list[Any]] = {
        State: [state],
        Checkpoint: [*state.checkpoints],
        Launch: [*state.launches],
        AttemptRecord: [*state.attempts],
        Run: [*state.runs],
        Closing: [Closing(reason=HOSTILE)],
        Restored: [
            candidates_at_start(state, replace(launch, restore_point=point), None)
            for launch in state.launches[-1:]
            for point in (state.restore_point(), Point(pointer=HOSTILE))
        ],
        Point: [Point(pointer=HOSTILE)],
        Pointer: [Pointer(HOSTILE, HOSTILE, 7)],
        Beat: [BEAT],
        QueryProgress: [*BEAT.queries],
        restore_story.StoryFacts: [
            restore_story.StoryFacts(HOSTILE, BEAT, alive, state.at) for alive in (True, False, None)
        ],
        StateEntry: [StateEntry(uid=HOSTILE, kind=HOSTILE, run=HOSTILE, batch=batch) for batch in (-1, 7)],
        StateSnapshot: [StateSnapshot(uid=HOSTILE, kind=HOSTILE, run=HOSTILE)],
        ReadAgain: [ReadAgain(HOSTILE, 2, (HOSTILE,), not_asked=True)],
        GoingBack: [GoingBack(HOSTILE, saved) for saved in SAVED],
        Edge: [Edge(upstream=HOSTILE, path=HOSTILE, ahead=2)],
        OlderRun: [OlderRun(HOSTILE, (1,), 1, closed=True), OlderRun(HOSTILE, error=ERROR)],
        CheckpointConfig: [CheckpointConfig(interval=1)],
        CheckpointError: [ERROR],
        Exception: [ERROR],
        str: [HOSTILE, *(run.key for run in state.runs)],
        int: [1, 2],
        float: [1.0],
        bool: [True],
        Any: [{HOSTILE: [HOSTILE]}, None],
    }
    return choices[hint]


def lines(function: Callable[..., Any]) -> Iterator[str]:
    """Yield each line that a function makes of hostile arguments."""
    hints = typing.get_type_hints(function)
    del hints["return"]
    for state in STATES:
        for chosen in itertools.product(*(values(hint, state) for hint in hints.values())):
            made = function(**dict(zip(hints, chosen, strict=True)))
            yield from [made] if isinstance(made, str) else made


@pytest.mark.parametrize("name", FUNCTIONS)
def test_line_of_a_hostile_text_is_one_printable_line(name: str) -> None:
    made = list(lines(FUNCTIONS[name]))
    silent = (
        "restore_story.cleared_unchanged",
        "restore_story.given_up",
        "restore_story.started_again",
    )  # of these states and this master
    assert made or name in silent
    assert [line for line in made if not line.isprintable()] == []


def test_notification_about_a_hostile_job_is_printable() -> None:
    failed = tries.FailedTask(HOSTILE, HOSTILE, 1, 3, retried=False, reason=HOSTILE, connection=HOSTILE)
    told = [tries.subject(failed), *tries.without_facts(failed, ERROR), tries.cannot_tell(HOSTILE)]
    for state in STATES:
        newest = state.launches[-1]
        for attempt, over in ((None, True), (state.attempts[-1], True), (state.attempts[-1], False)):
            found = Tries(newest, attempt, over, (newest,))
            for about in (failed, replace(failed, reason="", retried=True)):
                told += tries.notification(about, state, HOSTILE, found, state.at)
            told += [
                tries.stuck(state, found),
                tries.goes_on(state, found, 3),
                tries.goes_on(state, replace(found, stuck=()), 3),
            ]
    assert [line for line in told if not line.isprintable()] == []


def test_lines_about_a_hostile_jobs_health_and_age_are_printable() -> None:
    point = Point(pointer=HOSTILE)
    for state in STATES:
        made = [health.healthy(state, BEAT, state.at), restore_age.unknown(HOSTILE, point)]
        made += [
            str(CheckpointError(health.unhealthy(state, health.problems(state, beat, "2030-01-01T00:00:00Z", 0, 0))))
            for beat in (BEAT, None)
        ]
        for checkpoint in state.checkpoints:
            text = restore_age.too_old(HOSTILE, point, checkpoint, state.at, 1.0)
            made += [restore_age.warned(text), str(CheckpointError(restore_age.refused(text, HOSTILE, state)))]
        assert [line for line in made if not line.isprintable()] == []
