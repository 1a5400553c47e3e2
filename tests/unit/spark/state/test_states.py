"""The states of one attempt: values follow the script, states that it has not reached are kept. Runs anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig, KindChanged
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.metadata import Seal, StateSnapshot
from airflow_checkpoint_provider.protocol.part_records import Part, PartsDetail
from airflow_checkpoint_provider.spark.state.snapshot import StoredSnapshot
from airflow_checkpoint_provider.spark.state.states import States, new_in
from airflow_checkpoint_provider.spark.state.value import DEEPEST_VALUE, LARGEST_VALUE, Value
from tests.unit.spark.state.stored_states import RUN, file_set, held, registered, seal, stage, value


def claimed(states: States, uid: str, default: Any = None) -> Value:
    states.claim_value(uid)
    return Value(states.values, uid, default, states.set_value)


# -- values follow the script ------------------------------------------------------------------------------------------


def test_values_of_a_new_history_begin_with_defaults() -> None:
    states = States.restored(None, RUN)
    count = claimed(states, "count", 0)
    assert count.get() == 0
    assert held(states) == {}, "a default that nobody set is no state"
    count.set(count.get() + 1)
    assert held(states) == {"count": 1}


def test_retry_begins_with_the_values_of_the_start_of_its_run() -> None:
    restored = seal(value("count", 7), count=5)
    assert claimed(States.restored(restored, RUN), "count").get() == 5


def test_new_run_begins_with_the_newest_values() -> None:
    states = States.restored(seal(value("count", 7), count=5), "day-2")
    assert claimed(states, "count").get() == 7
    assert states.run_values == {"count": 7}, "and its retries begin with these"


def test_values_are_put_back_with_their_makers() -> None:
    states = States.restored(seal(value("count", 7), count=5), RUN)
    count, other = claimed(states, "count"), claimed(states, "other", 0)
    before = states.values_now()
    count.set(6)
    other.set(1)
    states.put_back(before)
    assert (count.get(), other.get(), states.own_values) == (5, 0, set())


def test_reused_stage_sets_values_to_those_of_its_barrier() -> None:
    clean, named = stage("clean", count=1), stage("named", before={"clean": file_set("clean", 1)}, count=2)
    states = States.restored(seal(clean, named, value("count", 9), count=0), RUN)
    count = claimed(states, "count")
    for found, at_its_barrier in ((clean, 1), (named, 2)):
        assert found.stage
        assert not states.replay_values(found.stage, "app")
        states.hand_out(found)
        assert count.get() == at_its_barrier
        count.set(count.get() + 1)
    assert count.get() == 3, "what runs after the last reused barrier runs anew, once"


def test_reused_stage_after_a_recomputed_stage_leaves_values_unchanged() -> None:
    named = stage("named", before={"clean": file_set("clean", 1)}, count=2)
    states = States.restored(seal(stage("clean"), named, count=0), RUN)
    states.hand_out(stage("clean", epoch=2))
    count = claimed(states, "count")
    count.set(100)
    assert named.stage
    (difference,) = states.replay_values(named.stage, "app")
    assert (difference.now, difference.stored, difference.why_kept) == (100, 2, "a stage before it was computed again")
    assert count.get() == 100


# -- the application changed -------------------------------------------------------------------------------------------


def reuse(states: States, found: StateSnapshot, application: str) -> list[tuple[str, Any, Any, bool]]:
    """Hand out a stored stage to ``application``. Return the values that differ: what is there, what was stored, which one counts."""
    assert found.stage
    differences = states.replay_values(found.stage, application)
    states.hand_out(found)
    return [(one.uid, one.now, one.stored, bool(one.why_kept)) for one in differences]


def test_new_code_counts_at_the_barriers_of_another_application() -> None:
    clean, named = stage("clean", count=1), stage("named", before={"clean": file_set("clean", 1)}, count=2)
    states = States.restored(seal(clean, named, value("count", 2), count=0), RUN)
    count = claimed(states, "count")
    count.set(1)
    assert reuse(states, clean, "corrected") == []
    count.set(count.get() + 10)
    assert reuse(states, named, "corrected") == [("count", 11, 2, True)]
    assert held(states)["count"] == 11


def test_value_that_the_new_code_set_long_before_stays() -> None:
    """The stages after it had stored what the old code set."""
    clean, named = stage("clean", count=1), stage("named", before={"clean": file_set("clean", 1)}, count=1)
    states = States.restored(seal(clean, named, value("count", 1)), RUN)
    count = claimed(states, "count")
    count.set(10)
    assert reuse(states, clean, "corrected") == [("count", 10, 1, True)]
    assert reuse(states, named, "corrected") == [], "it was said already"
    assert count.get() == 10


def test_value_that_the_new_code_has_not_set_gets_the_stored_one() -> None:
    states = States.restored(seal(stage("clean", count=1, unused=3), value("count", 9), value("unused", 3)), RUN)
    count = claimed(states, "count", 0)
    assert reuse(states, stage("clean", count=1, unused=3), "corrected") == [("count", None, 1, False)]
    assert count.get() == 1
    assert "unused" not in states.values, "the script does not use it"


def test_values_of_the_attempt_before_stay_where_stages_are_of_three_applications() -> None:
    """*clean* is of the first attempt, *named* of the second, *sums* of the first; the third runs the second's application."""
    clean, named = stage("clean", count=1), stage("named", epoch=2, before={"clean": file_set("clean", 1)}, count=20)
    assert named.stage
    named = replace(named, stage=replace(named.stage, application="corrected"))
    before = {"clean": file_set("clean", 1), "named": file_set("named", 2)}
    sums = stage("sums", before=before, count=1)
    states = States.restored(seal(clean, named, sums, value("count", 20)), RUN)
    count = claimed(states, "count", 0)
    count.set(10)
    assert reuse(states, clean, "corrected") == [("count", 10, 1, True)]
    assert reuse(states, named, "corrected") == []
    assert count.get() == 20, "as a function set it that is not called again"
    assert reuse(states, sums, "corrected") == [("count", 20, 1, True)]
    assert count.get() == 20


def test_one_and_true_are_two_values() -> None:
    states = States.restored(seal(stage("clean", flag=1)), RUN)
    claimed(states, "flag").set(True)
    assert reuse(states, stage("clean", flag=1), "corrected") == [("flag", True, 1, True)]


def test_value_changes_only_by_set() -> None:
    states = States.restored(seal(value("seen", ["a"]), seen=["a"]), RUN)
    seen = claimed(states, "seen")
    names = seen.get()
    names.append("b")
    assert seen.get() == ["a"]
    seen.set(names)
    names.append("c")
    assert seen.get() == ["a", "b"]
    assert states.run_values == {"seen": ["a"]}


def test_default_cannot_be_changed() -> None:
    seen = claimed(States.restored(None, RUN), "seen", [])
    seen.get().append("a")
    assert seen.get() == []


def nested(times: int) -> Any:
    value: Any = 7
    for _ in range(times + 1):
        value = [value]
    return value


def test_record_of_a_new_stage_is_complete_when_a_checkpoint_has_completed_with_it() -> None:
    states = States.restored(seal(stage("old")), RUN)
    written = stage("clean", epoch=2)
    proved = StoredSnapshot(replace(written, value="proved"))
    states.hand_out(written, proved)
    assert states.pin("here") == {"clean": proved, "old": StoredSnapshot(stage("old"))}
    assert [record.uid for record in states.complete_records()] == ["old"]
    states.completed({"clean": proved.record, "old": stage("old")})
    assert states.pin("here") == {"clean": proved, "old": StoredSnapshot(stage("old"))}
    assert {record.uid: record.value for record in states.complete_records()} == {"old": None, "clean": "proved"}


def test_deepest_value_is_kept_and_read_again() -> None:
    states = States.restored(None, RUN)
    claimed(states, "deep").set(nested(DEEPEST_VALUE))
    stored = StateSnapshot(uid="deep", kind="value", run=RUN, value=held(states)["deep"])
    sealed = seal(stored)
    assert Seal.from_bytes(sealed.to_bytes()) == sealed


def test_value_is_at_once_what_a_retry_will_read() -> None:
    states = States.restored(None, RUN)
    pair = claimed(states, "pair", [{}])
    assert pair.get() == [{}]
    given = [1, {"2": None}, 1.5, "é", True]
    pair.set(given)
    assert pair.get() == given


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({1: "a"}, "1 (int) as a key would come back as text. Write str(key)"),
        ({1: 1, "1": 2, None: 3}, "1 (int), None (NoneType) as a key would come back as text"),
        ({"days": [{}, {(1, 2): 3}]}, "at ['days'][1], (1, 2) (tuple) as a key"),
        ({"days": [{"a": (1, 2)}]}, "at ['days'][0]['a'], a tuple would come back as a list. Give a list or a dict"),
        (Point(1), "a Point would come back as a list"),
        ([{True: 1}], "at [0], True (bool) as a key"),
        ({1.5: 1}, "1.5 (float) as a key"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(given: Any, words: str) -> None:
    states = States.restored(None, RUN)
    with pytest.raises(InvalidConfig, match=re.escape(f"value 'count': {words}")):
        claimed(states, "count").set(given)
    with pytest.raises(InvalidConfig, match=re.escape(f"the default of value 'other': {words}")):
        claimed(states, "other", given)
    assert held(states) == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (object(), "a value is JSON"),
        (float("nan"), "a value is JSON"),
        (1j, "a value is JSON"),
        ("\udc80", "a value is JSON"),
        ("x" * LARGEST_VALUE, f"{LARGEST_VALUE + 2} bytes of JSON"),
        (nested(DEEPEST_VALUE + 1), "nested more than 64 times; a value is JSON"),
        (nested(5000), "a value is JSON"),
    ],
    ids=["no JSON", "not a number", "complex", "no text", "too large", "too deep", "far too deep"],
)
def test_value_that_is_no_json_or_too_large_is_refused(given: Any, words: str) -> None:
    states = States.restored(None, RUN)
    with pytest.raises(InvalidConfig, match=words):
        claimed(states, "count").set(given)
    assert held(states) == {}


def test_largest_value_is_kept() -> None:
    states = States.restored(None, RUN)
    claimed(states, "text").set("x" * (LARGEST_VALUE - 2))
    assert len(held(states)["text"]) == LARGEST_VALUE - 2


# -- what is acknowledged ----------------------------------------------------------------------------------------------


def test_states_that_the_script_has_not_reached_stay_in_checkpoints() -> None:
    states = States.restored(seal(stage("clean"), stage("named"), value("count", 7)), RUN)
    states.hand_out(stage("clean", epoch=2))
    assert held(states) == {"clean": file_set("clean", 2), "named": file_set("named", 1), "count": 7}


def test_unclaimed_names_restored_states_that_the_script_did_not_use() -> None:
    states = States.restored(seal(stage("clean"), stage("named"), value("count", 7), value("seen", [])), RUN)
    states.hand_out(stage("clean", epoch=2))
    claimed(states, "count")
    claimed(states, "new").set(1)
    assert [state.uid for state in states.unclaimed()] == ["named", "seen"]


def begun(states: States) -> Seal:
    """Return a checkpoint of ``states``, as their attempt acknowledges it."""
    found = seal(*states.records("end"), run=states.run, **states.run_values)
    ack = replace(found.applications[""], run_objects=states.run_objects)
    return replace(found, applications={"": ack})


def test_states_that_an_earlier_attempt_of_the_run_made_stay_new() -> None:
    """So a retry of a script with a wrong name fails again, and a script without that name does not."""
    first = States.restored(seal(value("totals", 7), registered("position", 3), run="day-1"), "day-2")
    claimed(first, "totalz").set(1)
    first.register("offsets")
    first.object_states["offsets"] = 1
    retry = States.restored(begun(first), "day-2")
    assert [state.uid for state in retry.unclaimed_of_earlier_runs()] == ["position", "totals"]
    assert all(not uids for uids in retry.new(()).values())
    retry.claim_value("totalz")
    retry.register("offsets")
    assert retry.new(()) == {"value": {"totalz"}, "registered": {"offsets"}}


def test_stages_are_no_states_of_earlier_runs() -> None:
    states = States.restored(seal(stage("clean"), value("count", 7), count=7), RUN)
    assert [state.uid for state in states.unclaimed_of_earlier_runs()] == ["count"]


def test_registered_hook_is_no_new_state() -> None:
    states = States.restored(None, RUN)
    states.register("hook")
    assert not states.new(["hook"])["registered"]


def test_values_of_attempts_that_did_not_finish_are_named() -> None:
    """The run did not begin with them, and this attempt does not set them."""
    restored = seal(value("count", 7), value("typo", 1), value("once", 1), stage("clean"), registered("o", 1), count=5)
    states = States.restored(restored, RUN)
    claimed(states, "count")
    claimed(states, "once", 0)
    assert states.unfinished_values() == ("typo", "once")
    claimed(states, "typo").set(2)
    assert states.unfinished_values() == ("once",)


def test_dropped_states_are_in_no_later_checkpoint() -> None:
    """Not even if a checkpoint that holds them completes later."""
    restored = seal(stage("clean"), value("count", 7), value("seen", []), count=5, seen=[])
    states = States.restored(restored, RUN)
    claimed(states, "count")
    states.drop(("clean", "seen"))
    assert states.changed()
    states.completed(restored.states)
    assert (held(states), states.run_values) == ({"count": 5}, {"count": 5})
    assert states.changed(), "the newest completed one still holds them"
    states.completed({state.uid: state for state in states.records("end")})
    assert (held(states), states.changed()) == ({"count": 5}, False)


@pytest.mark.parametrize(
    ("restored", "ask", "message"),
    [
        (value("clean", 7), lambda states: states.stage("clean"), "'clean' is a value .* the name for a stage"),
        (stage("count"), lambda states: states.claim_value("count"), "'count' is a stage .* the name for a value"),
    ],
)
def test_state_is_not_replaced_by_another_kind(
    restored: StateSnapshot, ask: Callable[[States], object], message: str
) -> None:
    states = States.restored(seal(restored), RUN)
    with pytest.raises(KindChanged, match=message):
        ask(states)
    assert [state.uid for state in states.unclaimed()] == [restored.uid]


def test_value_that_the_script_has_not_set_stays_as_restored() -> None:
    states = States.restored(seal(value("count", 7)), RUN)
    claimed(states, "count")
    assert held(states) == {"count": 7}


def test_stages_of_another_run_are_dropped() -> None:
    states = States.restored(seal(stage("clean"), value("count", 7)), "day-2")
    assert states.stage("clean") is None
    assert held(states) == {"count": 7}


def test_run_of_another_history_with_the_same_name_is_another_run() -> None:
    """Runs of two jobs have the same names: a daily schedule, ``alone-1``. Their file sets lie elsewhere."""
    states = States.restored(seal(stage("clean"), value("count", 7), count=5), RUN, elsewhere=True)
    assert states.stage("clean") is None
    assert (held(states), states.run_values) == ({"count": 7}, {"count": 7})
    assert states.changed(), "what was restored from elsewhere is taken over by a checkpoint of our own"


def test_pinned_records_do_not_change_while_the_script_goes_on() -> None:
    states = States.restored(None, RUN)
    seen = claimed(states, "seen", [])
    seen.set(["a"])
    pinned = states.records("here")
    seen.set(["b"])
    states.hand_out(stage("clean"))
    assert [(state.uid, state.value) for state in pinned] == [("seen", ["a"])]


# -- what changed ------------------------------------------------------------------------------------------------------


def test_states_equal_to_the_restore_point_are_not_changed() -> None:
    states = States.restored(seal(stage("clean"), value("count", 7)), RUN)
    states.hand_out(stage("clean"))
    assert not states.changed()
    claimed(states, "count").set(7)
    assert not states.changed()


def test_changed_value_is_not_changed_after_it_was_saved() -> None:
    states = States.restored(None, RUN)
    assert not states.changed()
    count = claimed(states, "count")
    count.set(1)
    assert states.changed()
    states.completed({state.uid: new_in(1, state) for state in states.records("here")})
    assert not states.changed()
    count.set(2)
    assert states.changed()


def test_failed_checkpoint_leaves_states_changed() -> None:
    states = States.restored(None, RUN)
    claimed(states, "count").set(1)
    states.completed({})
    assert states.changed()


def test_state_is_new_in_the_first_completed_checkpoint_that_holds_it() -> None:
    states = States.restored(None, RUN)
    states.hand_out(stage("clean"))
    aborted = [new_in(1, state) for state in states.records("here")]
    assert [state.measures.checkpoint for state in aborted] == [1]
    states.completed({state.uid: new_in(2, state) for state in states.records("here")})
    assert [new_in(3, state).measures.checkpoint for state in states.records("here")] == [2]


def test_stage_computed_during_a_checkpoint_is_not_lost_when_it_completes() -> None:
    states = States.restored(seal(stage("clean")), RUN)
    earlier = {state.uid: state for state in states.records("here")}
    states.hand_out(stage("clean", epoch=2))
    states.completed(earlier)
    assert held(states) == {"clean": file_set("clean", 2)}
    assert states.changed()


# -- stages in parts ---------------------------------------------------------------------------------------------------


def in_parts(*epochs: int) -> StateSnapshot:
    """Return a stage of three parts, of which some are stored, each by the attempt of an epoch."""
    whole = stage("days")
    file_sets = tuple(FileSet(path=f"state/days/{epoch}-{place}") for place, epoch in enumerate(epochs))
    parts = PartsDetail(values=(1, 2, 3), done=(Part(),) * len(epochs))
    return replace(whole, kind="parts", file_sets=file_sets, parts=parts)


def test_newest_part_stands_for_all_before_it() -> None:
    states = States.restored(seal(in_parts(1, 1)), RUN)
    assert states.stage("days", "parts") == (in_parts(1, 1), in_parts(1, 1).stage)
    assert states.stage("days") is None, "and it is computed again if it is not in parts any more"
    states.hand_out(in_parts(1, 1, 2))
    assert states.handed_out == {"days": "state/days/2-2"}


def test_snapshot_of_the_newest_part_completes_the_stage_until_a_checkpoint_holds_it() -> None:
    states = States.restored(seal(in_parts(1)), RUN)
    assert states.completing("days") is None
    for grown in (in_parts(1, 2), in_parts(1, 2, 2)):
        incomplete = StoredSnapshot(grown)
        states.hand_out(grown, incomplete)
        assert states.pin("here")["days"] is incomplete
    states.completed({"days": in_parts(1, 2)})  # that of the part before: the script has gone on
    assert states.completing("days") is incomplete
    states.completed({"days": in_parts(1, 2, 2)})
    assert states.completing("days") is None
