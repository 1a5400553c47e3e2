"""Restored states are matched, renamed or dropped; what would lose state is refused. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.coordinator.assignment import (
    Allowed,
    check_allowance,
    check_kind,
    refuse_wrong_names,
    rename_states_in,
    renamed,
    split_allowed,
    unclaimed,
)
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    InvalidConfig,
    InvalidName,
    KindChanged,
    NonRestoredState,
    RenameConflict,
    StateNotFound,
)
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.metadata import (
    Acknowledgement,
    FilesDetail,
    LoopDetail,
    Provenance,
    Seal,
    StageDetail,
    StateSnapshot,
    digest_of_stages,
)

UIDS = st.sampled_from("abcdef")


def value(uid: str, held: Any = 1) -> StateSnapshot:
    return StateSnapshot(uid=uid, kind="value", run="r", value=held)


def stage(uid: str, before: Mapping[str, str] | None = None, **values: Any) -> StateSnapshot:
    detail = StageDetail(
        plan="p", inputs="", python=False, application="app", schema="{}", codec="zstd", values=values,
        earlier_stages=digest_of_stages((before or {}).values()), stage_before=next(iter(before or {}), None),
    )  # fmt: skip
    return StateSnapshot(uid=uid, kind="stage", run="r", file_sets=(FileSet(path=f"state/{uid}/1-aa"),), stage=detail)


def by_uid(*states: StateSnapshot) -> dict[str, StateSnapshot]:
    return {state.uid: state for state in states}


def seal(**applications: Sequence[StateSnapshot]) -> Seal:
    acks = {
        name: Acknowledgement(
            inc="i", id=3, application=name, epoch=1, nonce="n", run="r", states=tuple(states),
            run_values={state.uid: 0 for state in states if state.kind == "value"},
            run_objects=tuple(state.uid for state in states if state.kind == "registered"),
        )
        for name, states in applications.items()
    }  # fmt: skip
    return Seal(
        inc="i", job="j", scope="", item=None, id=3, kind="checkpoint", branch=0, epochs=(1,), plan=tuple(acks), applications=acks
    )  # fmt: skip


# -- left over -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "restored", "claimed", "found"),
    [
        ("all claimed", [value("a"), stage("b")], "ab", ()),
        ("by name, sorted", [value("b"), stage("a"), value("c")], "c", ("a", "b")),
        ("claimed and not restored", [], "ab", ()),
        ("an empty one is no loss", [value("a", None), value("b", 0), value("c", [])], "", ("b", "c")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_unclaimed_states_are_named_in_order(
    rule: str, restored: Sequence[StateSnapshot], claimed: str, found: tuple[str, ...]
) -> None:
    assert unclaimed(by_uid(*restored), set(claimed)) == found


def test_many_unclaimed_states_are_named_in_order_however_they_are_hashed() -> None:
    uids = [f"state-{number:02d}" for number in range(30)]
    assert unclaimed(by_uid(*(value(uid) for uid in reversed(uids))), set()) == tuple(uids)


@pytest.mark.parametrize(
    ("allowed", "dropped", "kept"),
    [
        (False, (), ("a", "b")),
        ({}, (), ("a", "b")),
        (True, ("a", "b"), ()),
        ("keep", (), ("a", "b")),
        ({"b": "drop"}, ("b",), ("a",)),
        ({"b": "drop", "gone": "drop"}, ("b",), ("a",)),
        ({"a": "keep", "b": "drop"}, ("b",), ("a",)),
    ],
)
def test_unclaimed_states_are_split_by_the_allowance(
    allowed: Allowed, dropped: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    assert split_allowed(("a", "b"), allowed) == (dropped, kept)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (False, False),
        (True, True),
        ("keep", "keep"),
        ([], {}),
        (["a", "b"], {"a": "drop", "b": "drop"}),
        (("a",), {"a": "drop"}),
        ({"weekly": "keep", "old": "drop"}, {"weekly": "keep", "old": "drop"}),
    ],
)
def test_allowance_is_read(given: Any, read: Any) -> None:
    assert check_allowance(given) == read


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("totals", InvalidConfig),  # would be six uids
        (1, InvalidConfig),
        (None, InvalidConfig),
        ([1], InvalidConfig),
        ("drop", InvalidConfig),
        ({"a": 1}, InvalidConfig),
        ({"a": "remove"}, InvalidConfig),
        ({1: "keep"}, InvalidConfig),
        ({"": "keep"}, InvalidName),
        ([""], InvalidName),
        (["a\n"], InvalidName),
    ],
)
def test_invalid_allowance_is_refused(given: Any, error: type[CheckpointError]) -> None:
    with pytest.raises(error):
        check_allowance(given)


VALUE, OBJECT = "value", "registered"


@pytest.mark.parametrize(
    ("rule", "restored", "new", "allowed"),
    [
        ("all restored states are used", [], {VALUE: ["totalz"]}, False),
        ("the script uses no new state", [value("totals")], {VALUE: []}, False),
        ("the new state is of another kind", [value("totals")], {VALUE: [], OBJECT: ["totalz"]}, False),
        ("each state is kept", [value("totals")], {VALUE: ["totalz"]}, "keep"),
        ("each state is dropped", [value("totals")], {VALUE: ["totalz"]}, True),
        ("the state is kept by name", [value("totals")], {VALUE: ["totalz"]}, {"totals": "keep"}),
        ("the state is dropped by name", [value("totals")], {VALUE: ["totalz"]}, {"totals": "drop"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unclaimed_state_is_no_wrong_name(
    rule: str, restored: Sequence[StateSnapshot], new: Mapping[str, Sequence[str]], allowed: Allowed
) -> None:
    refuse_wrong_names(restored, new, allowed)


@pytest.mark.parametrize("allowed", [False, {}, {"old": "drop"}])
def test_unclaimed_value_beside_a_new_one_is_refused_with_three_ways_out(allowed: Allowed) -> None:
    with pytest.raises(NonRestoredState) as refused:
        refuse_wrong_names([value("old"), value("totals")][not allowed :], {VALUE: {"totalz"}}, allowed)
    assert refused.value.permanent
    message = refused.value.message
    assert "did not use the restored value 'totals', and used the new value 'totalz'" in message
    assert (
        "write 'totals' in the script. If the state has another name now, restore it with --rename totals=totalz."
        in message
    )
    assert 'allow_non_restored_state={"totals": "keep"}. To drop it, set allow_non_restored_state=["totals"]' in message


def test_state_of_another_kind_is_refused() -> None:
    check_kind(stage("clean"), "stage")
    with pytest.raises(KindChanged, match="'clean' is a stage"):
        check_kind(stage("clean"), "value")


# -- renamed -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "rename", "found"),
    [
        ("nothing", {}, {"a": 1, "b": 2}),
        ("one", {"a": "c"}, {"c": 1, "b": 2}),
        ("into a name that is given up", {"a": "b", "b": "c"}, {"b": 1, "c": 2}),
        ("each other", {"a": "b", "b": "a"}, {"b": 1, "a": 2}),
        ("to itself", {"a": "a"}, {"a": 1, "b": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_states_are_renamed(rule: str, rename: Mapping[str, str], found: Mapping[str, int]) -> None:
    states = renamed(by_uid(value("a", 1), value("b", 2)), rename)
    assert {uid: state.value for uid, state in states.items()} == found
    assert all(state.uid == uid for uid, state in states.items())


@pytest.mark.parametrize(
    ("rule", "rename", "error", "message"),
    [
        ("two to one", {"a": "c", "b": "c"}, RenameConflict, "two states would be called 'c', .* 'a' and 'b'"),
        ("to one that stays", {"a": "b"}, RenameConflict, "two states would be called 'b'"),
        ("unknown", {"x": "y"}, StateNotFound, "rename names 'x', .* 'a', 'b'"),
        ("no name", {"a": ""}, InvalidName, "uid ''"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_rename_is_refused(
    rule: str, rename: Mapping[str, str], error: type[CheckpointError], message: str
) -> None:
    with pytest.raises(error, match=message):
        renamed(by_uid(value("a"), value("b")), rename)


@given(st.dictionaries(UIDS, UIDS), st.sets(UIDS))
def test_rename_keeps_every_state_or_is_refused(rename: dict[str, str], uids: set[str]) -> None:
    states = by_uid(*(value(uid, uid) for uid in sorted(uids)))
    try:
        found = renamed(states, rename)
    except StateNotFound:
        assert rename.keys() - uids
    except RenameConflict:
        assert len({rename.get(uid, uid) for uid in uids}) < len(uids)
    else:
        assert {state.value: uid for uid, state in found.items()} == {uid: rename.get(uid, uid) for uid in uids}


def test_rename_updates_references_and_keeps_files() -> None:
    clean = stage("clean")
    joined = stage("joined", {"clean": clean.file_sets[0].path}, count=7, seen=[])
    found = renamed(by_uid(clean, joined, value("count")), {"clean": "cleaned", "count": "total"})
    detail = found["joined"].stage
    assert detail
    assert (detail.stage_before, detail.values) == ("cleaned", {"total": 7, "seen": []})
    assert detail.earlier_stages == digest_of_stages([clean.file_sets[0].path])
    assert found["cleaned"].file_sets == clean.file_sets


def test_rename_updates_the_references_of_loops() -> None:
    detail = LoopDetail(
        application="app",
        path="state/rank/1-b",
        stage_before="edges",
        frames={"ranks": "state/ranks/1-c"},
        writes={"history": 3},
        writes_before={"history": 1},
        own_values=("count",),
        values={"count": 7},
        broken_off="count",
        used=("count", "rank"),
    )
    loop = StateSnapshot(uid="rank", kind="loop", run="r", value={"turns": 2}, loop=detail)
    names = {"edges": "e", "ranks": "r", "history": "h", "count": "c", "rank": "k"}
    others = by_uid(stage("edges"), value("ranks"), value("history"), value("count"), loop)
    found = renamed(others, names)["k"].loop
    assert found
    assert (found.stage_before, found.frames, found.path) == ("e", {"r": "state/ranks/1-c"}, "state/rank/1-b")
    assert (found.writes, found.writes_before, found.own_values) == ({"h": 3}, {"h": 1}, ("c",))
    assert (found.values, found.broken_off, found.used) == ({"c": 7}, "c", ("c", "k"))


MADE: dict[str, Any] = {"application": "app", "stage_before": "edges", "values": {"count": 7, "seen": []}}
DETAILS: dict[str, Any] = {
    "stage": StageDetail(plan="p", inputs="", python=False, schema="{}", codec="zstd", **MADE),
    "files": FilesDetail(local=False, **MADE),
    "loop": LoopDetail(path="state/x/1-b", **MADE),
}


def test_rename_knows_each_kind_that_remembers_what_it_was_made_from() -> None:
    kinds = {name for name, of in get_type_hints(StateSnapshot).items() if _has_provenance(of)}
    assert kinds == DETAILS.keys()


def _has_provenance(of: Any) -> bool:
    return any(isinstance(one, type) and issubclass(one, Provenance) for one in get_args(of))


@pytest.mark.parametrize("kind", DETAILS)
def test_rename_updates_what_a_state_was_made_from(kind: str) -> None:
    file_sets = (FileSet(path="state/x/1-aa"),)
    state = StateSnapshot(uid="x", kind=kind, run="r", file_sets=file_sets, **{kind: DETAILS[kind]})
    found = renamed(by_uid(state, stage("edges"), value("count")), {"edges": "e", "count": "total"})["x"]
    assert found == replace(state, **{kind: replace(DETAILS[kind], stage_before="e", values={"total": 7, "seen": []})})


def test_rename_replaces_the_value_of_a_dropped_state() -> None:
    """A stage remembers the value ``total``, which was dropped since; ``count`` gets that name."""
    found = renamed(by_uid(stage("clean", total=1, count=7), value("count", 7)), {"count": "total"})
    detail = found["clean"].stage
    assert detail
    assert detail.values == {"total": 7}


def test_rename_changes_run_values_of_one_application() -> None:
    """The state of the same name in another application keeps its name."""
    before = seal(orders=[value("count", 1), value("b", 2)], stock=[value("count", 3)])
    found = rename_states_in(before, {"count": "total"}, "orders")
    assert {state.uid: state.value for state in found.applications["orders"].states} == {"b": 2, "total": 1}
    assert found.applications["orders"].run_values == {"total": 0, "b": 0}
    assert found.applications["stock"] == before.applications["stock"]
    with pytest.raises(StateNotFound):
        rename_states_in(before, {"b": "c"}, "stock")


def test_rename_changes_the_objects_with_which_the_run_began() -> None:
    before = seal(orders=[replace(value("position"), kind="registered")])
    assert rename_states_in(before, {"position": "offsets"}, "orders").applications["orders"].run_objects == (
        "offsets",
    )


def test_rename_changes_the_stages_that_the_script_had_not_used() -> None:
    before = seal(orders=[stage("clean"), stage("raw")])
    orders = replace(before.applications["orders"], unused=("clean", "raw"))
    before = replace(before, applications={"orders": orders})
    assert rename_states_in(before, {"clean": "x"}, "orders").applications["orders"].unused == ("raw", "x")


# -- one application of several ------------------------------------------------------------------------------------------


def test_rename_for_an_unknown_application_is_refused() -> None:
    with pytest.raises(
        StateNotFound, match=r"chk-3 holds nothing of application 'payments', only of 'orders', 'stock'"
    ):
        rename_states_in(seal(orders=[], stock=[]), {}, "payments")


def test_single_job_is_the_application_without_a_name() -> None:
    alone = seal(**{"": [value("count")]})
    assert rename_states_in(alone, {"count": "total"}).states.keys() == {"total"}
