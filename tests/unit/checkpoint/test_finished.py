"""Which plans can go on from a checkpoint in which some applications had finished."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.checkpoint.errors import FinishedStateMismatch
from airflow_checkpoint_provider.checkpoint.finished import Edge, Finished, check_finished

NONE, PARTLY, FULLY = Finished.NONE, Finished.PARTLY, Finished.FULLY
ALL, POINTWISE = True, False


@pytest.mark.parametrize(
    ("consumer", "edge", "producers"),
    [
        (NONE, ALL, {NONE, PARTLY, FULLY}),  # who runs may read from anybody
        (NONE, POINTWISE, {NONE, PARTLY, FULLY}),
        (PARTLY, ALL, {FULLY}),  # each finished subtask had read all of the producer
        (PARTLY, POINTWISE, {PARTLY, FULLY}),  # it had read its own part
        (FULLY, ALL, {FULLY}),
        (FULLY, POINTWISE, {FULLY}),
    ],
)
@pytest.mark.parametrize("producer", list(Finished))
def test_what_a_producer_may_be(consumer: Finished, edge: bool, producers: set[Finished], producer: Finished) -> None:
    plan = {"read": {"r": producer}, "sum": {"s": consumer}}
    edges = [Edge("read", "sum", all_to_all=edge)]
    if producer in producers:
        check_finished(plan, edges)
    else:
        with pytest.raises(FinishedStateMismatch, match=f"'sum' is {consumer.value} .* 'read', .* is {producer.value}"):
            check_finished(plan, edges)


@pytest.mark.parametrize("edges", [(ALL, POINTWISE), (POINTWISE, ALL)])
def test_of_two_edges_the_stricter_one_counts(edges: tuple[bool, bool]) -> None:
    plan = {"read": {"r": PARTLY}, "sum": {"s": PARTLY}}
    with pytest.raises(FinishedStateMismatch):
        check_finished(plan, [Edge("read", "sum", all_to_all=one) for one in edges])


def test_each_producer_is_looked_at() -> None:
    plan = {"a": {"x": FULLY}, "b": {"y": NONE}, "sum": {"s": FULLY}}
    with pytest.raises(FinishedStateMismatch, match="'b', whose data it reads, is running"):
        check_finished(plan, [Edge("a", "sum"), Edge("b", "sum")])


def test_without_edges_anything_may_have_finished() -> None:
    check_finished({"a": {"x": FULLY}, "b": {"y": PARTLY}, "c": {"z": NONE}, "new": {}}, [])


def test_an_application_without_states_runs() -> None:
    with pytest.raises(FinishedStateMismatch, match="'read', whose data it reads, is running"):
        check_finished({"read": {}, "sum": {"s": FULLY}}, [Edge("read", "sum")])


@pytest.mark.parametrize("other", [NONE, PARTLY])
def test_the_states_of_an_application_finish_together(other: Finished) -> None:
    with pytest.raises(FinishedStateMismatch, match=f"'new' {other.value}, 'old' fully finished"):
        check_finished({"sum": {"old": FULLY, "new": other}}, [])


def test_an_edge_is_all_to_all_unless_it_says_otherwise() -> None:
    with pytest.raises(FinishedStateMismatch):
        check_finished({"read": {"r": PARTLY}, "sum": {"s": PARTLY}}, [Edge("read", "sum")])
