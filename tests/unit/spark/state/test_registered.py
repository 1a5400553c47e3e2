"""Registered objects without a job: the order and the arguments of their calls. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import Declined, KindChanged, WrongUse
from airflow_checkpoint_provider.protocol.checkpoint_records import (
    ABORTED,
    FORGOTTEN,
    PENDING,
    RETAINED,
    AbortCause,
    Checkpoint,
    Completion,
)
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark import InitializationContext
from airflow_checkpoint_provider.spark.state.registered import LONGEST_WORDS, Registered
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.spark.state.value import LARGEST_VALUE
from tests.support.objects import Calls, Hook, Own
from tests.unit.spark.state.stored_states import RUN, held, registered, seal, stage, value


def checkpoint(number: int, status: str) -> Checkpoint:
    pending = Checkpoint(
        request=Request(
            kind="checkpoint", token=f"{number}", try_number=1, barrier="here", gated=False, origin="barrier"
        ),
        id=number,
        epochs=(1,),
        branch=0,
        plan=("",),
        timeout_s=60.0,
        triggered_at="2026-11-20T00:00:00Z",
    )
    ended = "2026-11-20T00:00:01Z"
    if status == PENDING:
        return pending
    if status == ABORTED:
        return replace(pending, abort_cause=AbortCause(at=ended, n=number, reason="x"))
    held = Completion(at=ended, n=number, digest="d", bytes=0, metadata_bytes=9, status=status)
    return replace(pending, completion=held)


def outcomes(**by_id: str) -> State:
    return State(checkpoints=tuple(checkpoint(int(name[1:]), status) for name, status in by_id.items()))


def new() -> tuple[States, Registered]:
    states = States.restored(None, RUN)
    return states, Registered(states, None)


# -- initialized -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("restored", "given"),
    [
        ([registered("own", {"at": 7})], {"at": 7}),
        ([registered("own", 0)], 0),
        ([registered("another", 7)], None),
    ],
    ids=["its own", "a false one", "hook without state"],
)
def test_object_gets_its_own_state_of_the_restore_point(restored: list[Any], given: Any) -> None:
    own = Own()
    Registered(States.restored(seal(*restored), RUN), 3).add("own", own)
    assert own.given == InitializationContext("own", given, restored=True, checkpoint_id=3)


@pytest.mark.parametrize("restored", [value("own", 7), stage("own")], ids=["a value", "a stage"])
def test_object_is_refused_if_its_restored_state_is_of_another_kind(restored: StateSnapshot) -> None:
    own = Own()
    with pytest.raises(KindChanged, match=r"'own' is a .*the script uses the name for a registered object"):
        Registered(States.restored(seal(restored), RUN), 3).add("own", own)
    assert own.given is None


def test_object_is_a_hook_when_it_returned_no_state_at_the_newest_barrier() -> None:
    """Before its first barrier nobody knows."""
    registered_objects = Registered(States.restored(None, RUN), None)
    registered_objects.add("own", Own(says=7))
    registered_objects.add("hook", Own())
    assert registered_objects.hooks() == ()
    registered_objects.snapshot("here", None)
    assert registered_objects.hooks() == ("hook",)


def test_registered_state_counts_as_claimed() -> None:
    states = States.restored(seal(registered("own", 7), registered("another", 8)), RUN)
    Registered(states, 3).add("own", Own())
    assert [state.uid for state in states.unclaimed()] == ["another"]


def test_object_gets_no_state_without_a_restore_point() -> None:
    own = Own()
    new()[1].add("own", own)
    assert own.given == InitializationContext("own", None, restored=False, checkpoint_id=None)


def test_object_of_another_run_gets_the_restored_state() -> None:
    """It belongs to the history, as a value does; and to whom it is restored elsewhere."""
    for states in (
        States.restored(seal(registered("own", 7)), "day-2"),
        States.restored(seal(registered("own", 7)), RUN, elsewhere=True),
    ):
        own = Own()
        Registered(states, 3).add("own", own)
        assert own.given
        assert own.given.state == 7


def test_change_of_the_restored_state_does_not_change_the_checkpoint() -> None:
    states = States.restored(seal(registered("own", ["a"])), RUN)
    own = Own()
    Registered(states, 3).add("own", own)
    assert own.given
    own.given.state.append("b")
    assert held(states) == {"own": ["a"]}


@pytest.mark.parametrize("lacks", ["snapshot_state", "initialize_state"])
def test_object_without_a_required_method_is_refused(lacks: str) -> None:
    methods = {name: lambda *_: None for name in ("snapshot_state", "initialize_state") if name != lacks}
    obj: Any = type("Half", (), methods)()
    with pytest.raises(WrongUse, match=rf"'own': Half has no method {lacks}\. A registered object needs"):
        new()[1].add("own", obj)


# -- asked -------------------------------------------------------------------------------------------------------------


def test_objects_are_prepared_before_the_first_snapshot_in_order_of_registration() -> None:
    calls: Calls = []
    states, objects = new()
    for uid, obj in (("b", Hook(calls, 1, "b")), ("plain", Own(calls, 2)), ("a", Hook(calls, 3, "a"))):
        objects.add(uid, obj)
    objects.snapshot("here", 7)
    assert calls == [
        ("prepare", "b", 7), ("prepare", "a", 7),
        ("snapshot", "b", "here", 7), ("snapshot", "plain", "here", 7), ("snapshot", "a", "here", 7),
    ]  # fmt: skip
    assert held(states) == {"a": 3, "b": 1, "plain": 2}


def test_state_is_kept_as_it_was_at_the_last_barrier() -> None:
    states, objects = new()
    own = Own(says={"at": 1})
    objects.add("own", own)
    assert held(states) == {}
    objects.snapshot("here", 1)
    own.says["at"] = 2
    assert held(states) == {"own": {"at": 1}}
    objects.snapshot("there", 2)
    assert [(state.uid, state.kind, state.value) for state in states.records("")] == [("own", "registered", {"at": 2})]


def test_snapshot_of_none_drops_the_restored_state() -> None:
    states = States.restored(seal(registered("own", 7), registered("another", 8)), RUN)
    objects = Registered(states, 3)
    objects.add("own", Own(says=None))
    assert held(states) == {"own": 7, "another": 8}, "it was not asked yet"
    objects.snapshot("here", 4)
    assert held(states) == {"another": 8}, "state without hook is handed on"


def test_unchanged_state_is_not_new() -> None:
    states = States.restored(seal(registered("own", {"at": 7})), RUN)
    objects = Registered(states, 3)
    objects.add("own", Own(says={"at": 7}))
    objects.snapshot("here", 4)
    assert not states.changed()
    (same,) = states.records("here")
    assert same.measures.checkpoint == 1


def test_late_completion_does_not_bring_a_dropped_state_back() -> None:
    states, objects = new()
    own = Own(says=7)
    objects.add("own", own)
    objects.snapshot("here", 1)
    earlier = {state.uid: state for state in states.records("here")}
    own.says = None
    objects.snapshot("there", 2)
    states.completed(earlier)
    assert held(states) == {}
    assert states.changed()


# -- declined ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (ValueError("no position"), "'own': snapshot_state: ValueError: no position; the next barrier asks it again"),
        ({1, 2}, "'own': snapshot_state: InvalidConfig: its state: .*a value is JSON"),
        ("x" * LARGEST_VALUE, f"its state has {LARGEST_VALUE + 2} bytes of JSON, {LARGEST_VALUE} are allowed"),
        (ValueError("\udc80"), r"ValueError: \?;"),
        (ValueError("one\n\ttwo"), "ValueError: one two;"),
        (ValueError("x" * 9999), f"^.{{1,{LONGEST_WORDS + 100}}}$"),
    ],
    ids=["raised", "no JSON", "too large", "no text", "two lines", "a long text"],
)
def test_failed_snapshot_declines_with_its_error_and_keeps_all_states(says: Any, words: str) -> None:
    states, objects = new()
    first, own = Own(says=1), Own(says=2)
    objects.add("first", first)
    objects.add("own", own)
    objects.snapshot("here", 1)
    first.says, own.says = 3, says
    with pytest.raises(Declined, match=words):
        objects.snapshot("there", 2)
    assert held(states) == {"first": 1, "own": 2}


def test_failed_prepare_declines_before_any_snapshot() -> None:
    def refuse(number: int | None) -> None:
        raise OSError("disk full")

    calls: Calls = []
    _, objects = new()
    hook = Hook(calls)
    hook.prepare_snapshot_pre_barrier = refuse  # type: ignore[method-assign]
    objects.add("first", Own(calls))
    objects.add("hook", hook)
    with pytest.raises(Declined, match="'hook': prepare_snapshot_pre_barrier: OSError: disk full"):
        objects.snapshot("here", 1)
    assert calls == []


# -- notified --------------------------------------------------------------------------------------------------------------


def notifications(*numbers: int, also: tuple[int, ...] = (), **statuses: str) -> Calls:
    """Return the notifications of a hook. Each checkpoint of ``numbers`` has a barrier; the last barrier is for ``also``, too."""
    _, objects = new()
    hook = Hook()
    objects.add("hook", hook)
    for number in numbers:
        objects.snapshot("here", number)
    for number in also:
        objects.expect_outcome(number)
    hook.calls.clear()
    objects.notify(outcomes(**statuses))
    return [(method, *ids) for method, _, *ids in hook.calls]


@pytest.mark.parametrize(
    ("notified", "expected"),
    [
        (lambda: notifications(1, c1=RETAINED), [("complete", 1)]),
        (lambda: notifications(1, c1=FORGOTTEN), [("complete", 1)]),
        (lambda: notifications(1, c1=ABORTED), [("aborted", 1, None)]),
        (lambda: notifications(1, c1=PENDING), []),
        (lambda: notifications(1), []),
        (lambda: notifications(2, c1=RETAINED, c2=PENDING), []),
        (lambda: notifications(3, also=(2,), c2=RETAINED, c3=ABORTED), [("complete", 2), ("aborted", 3, 2)]),
    ],
    ids=[
        "completed",
        "deleted since",
        "aborted",
        "no outcome yet",
        "no longer listed",
        "another's",
        "gated ones, by id",
    ],
)
def test_object_is_notified_of_the_outcomes_of_its_snapshots(notified: Callable[[], Calls], expected: Calls) -> None:
    assert notified() == expected


def test_objects_are_notified_of_each_outcome_once_in_order() -> None:
    calls: Calls = []
    _, objects = new()
    objects.add("b", Hook(calls, name="b"))
    objects.add("plain", Own(calls))
    objects.snapshot("here", 1)
    objects.add("a", Hook(calls, name="a"))
    objects.snapshot("there", 2)
    calls.clear()
    objects.notify(outcomes(c1=RETAINED, c2=PENDING))
    assert calls == [("complete", "b", 1)], "who was registered later was not asked"
    objects.notify(outcomes(c1=RETAINED, c2=ABORTED))
    objects.notify(outcomes(c1=RETAINED, c2=ABORTED))
    assert calls[1:] == [("aborted", "b", 2, 1), ("aborted", "a", 2, 1)]


def test_error_of_a_notification_is_printed_and_the_others_are_notified(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(number: int) -> None:
        raise OSError(f"no commit of {number}")

    calls: Calls = []
    _, objects = new()
    first = Hook(calls)
    first.notify_checkpoint_complete = fail  # type: ignore[method-assign]
    objects.add("first", first)
    objects.add("second", Hook(calls, name="second"))
    objects.snapshot("here", 1)
    objects.notify(outcomes(c1=RETAINED))
    assert ("complete", "second", 1) in calls
    printed = capsys.readouterr()
    assert "'first': notify_checkpoint_complete(1): OSError: no commit of 1; the job continues" in printed.out
    assert "in fail" in printed.err


# -- closed ------------------------------------------------------------------------------------------------------------


def test_objects_are_closed_once_in_order_and_an_error_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError("no such session")

    calls: Calls = []
    _, objects = new()
    first = Hook(calls)
    first.close = fail  # type: ignore[method-assign]
    for uid, obj in (
        ("first", first),
        ("b", Hook(calls, name="b")),
        ("plain", Own(calls)),
        ("a", Hook(calls, name="a")),
    ):
        objects.add(uid, obj)
    objects.close(10)
    objects.close(10)
    assert calls == [("close", "b"), ("close", "a")]
    assert capsys.readouterr().out.count("'first': close: OSError: no such session; the job continues") == 1


def test_object_whose_notification_hangs_is_not_closed(capsys: pytest.CaptureFixture[str]) -> None:
    free = threading.Event()

    def hang(number: int) -> None:
        free.wait(30)

    calls: Calls = []
    _, objects = new()
    hanging = Hook(calls, name="hanging")
    hanging.notify_in_background, hanging.notify_checkpoint_complete = True, hang  # type: ignore[method-assign]
    objects.add("hanging", hanging)
    objects.add("other", Hook(calls, name="other"))
    objects.snapshot("here", 1)
    objects.notify(outcomes(c1=RETAINED))
    objects.close(0.01)
    free.set()
    assert [call for call in calls if call[0] == "close"] == [("close", "other")]
    assert "'hanging': a notification has not returned" in capsys.readouterr().out


# -- ids, where the store does not answer ------------------------------------------------------------------------------


def test_snapshot_gets_no_id_that_may_hold_an_earlier_state() -> None:
    """That checkpoint was acknowledged at an earlier barrier, and the answer was lost."""
    _, objects = new()
    own = Own(says=1)
    objects.add("own", own)
    objects.snapshot("here", 1)
    objects.snapshot("there", 1)
    assert [call[-1] for call in own.calls] == [1, None]
    objects.expect_outcome(1)
    objects.notify(outcomes(c1=RETAINED))
    assert objects.unsaved, "what was said there may be in none"


@pytest.mark.parametrize(("certain", "unsaved"), [(True, False), (False, True)])
def test_state_is_saved_when_a_checkpoint_that_holds_it_completes(certain: bool, unsaved: bool) -> None:
    _, objects = new()
    objects.add("own", Own(says=1))
    assert not objects.unsaved
    objects.snapshot("here", 1)
    objects.snapshot("there", 1)
    if certain:
        objects.holds_newest(1)
    objects.notify(outcomes(c1=RETAINED))
    assert objects.unsaved is unsaved


def test_state_is_not_saved_by_an_older_gated_checkpoint() -> None:
    _, objects = new()
    objects.add("own", Own(says=1))
    objects.snapshot("here", 2)
    objects.expect_outcome(1)
    objects.snapshot("there", 3)
    objects.notify(outcomes(c1=RETAINED, c2=RETAINED, c3=ABORTED))
    assert objects.unsaved


# -- a barrier inside a call -------------------------------------------------------------------------------------------


def test_barrier_inside_a_call_is_refused() -> None:
    _, objects = new()

    class Nested(Own):
        def initialize_state(self, ctx: InitializationContext) -> None:
            objects.refuse_inside()

    with pytest.raises(WrongUse, match="a stage or checkpoint was called inside initialize_state of 'own'"):
        objects.add("own", Nested())
    objects.refuse_inside()
