"""May a checkpoint in which some applications had finished be restored by this plan? Pure. Runs anywhere.

What has finished is not started again, so nobody must still wait for what only a finished one could send: a plan that was
changed between checkpoint and restore is refused where that is so. Flink's rules for its vertices, here for applications.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_checkpoint_provider.checkpoint.errors import FinishedStateMismatch


class Finished(enum.Enum):
    """How many of the subtasks of a state had finished."""

    NONE = "running"
    PARTLY = "partly finished"
    FULLY = "fully finished"


@dataclass(frozen=True)
class Edge:
    """``consumer`` reads what ``producer`` writes. ``all_to_all``: each of its subtasks reads from all of the producer's."""

    producer: str
    consumer: str
    all_to_all: bool = True


def check_finished(plan: Mapping[str, Mapping[str, Finished]], edges: Iterable[Edge]) -> None:
    """Raise ``FinishedStateMismatch`` if the applications of ``plan`` cannot go on together.

    :param plan: of each application its states, by uid; a state that the checkpoint does not hold is not finished.
    :param edges: between applications of the plan.
    """
    found = {application: _of(application, states) for application, states in plan.items()}
    by_pair: dict[tuple[str, str], bool] = {}
    for edge in edges:  # of several edges between two, the stricter one counts
        pair = (edge.producer, edge.consumer)
        by_pair[pair] = by_pair.get(pair, False) or edge.all_to_all
    for (producer, consumer), all_to_all in by_pair.items():
        needed = _needed(found[consumer], all_to_all)
        if found[producer] not in needed:
            raise FinishedStateMismatch(
                f"application '{consumer}' is {found[consumer].value} in the checkpoint, but '{producer}', whose data it reads, is"
                f" {found[producer].value}: what that still sends would reach nobody. Nothing was changed."
                f" Take '{producer}' out from before '{consumer}', or restore a checkpoint from before '{consumer}' finished"
            )


def _of(application: str, states: Mapping[str, Finished]) -> Finished:
    """One for all: the states of an application finish with it."""
    kinds = set(states.values()) or {Finished.NONE}
    if len(kinds) > 1:
        said = ", ".join(f"'{uid}' {how.value}" for uid, how in sorted(states.items()))
        raise FinishedStateMismatch(
            f"application '{application}' would hold states that finished and states that did not ({said}): it can neither be"
            " started nor left out. Nothing was changed. Give the states that are new an application of their own"
        )
    return kinds.pop()


def _needed(consumer: Finished, all_to_all: bool) -> set[Finished]:
    """What a producer may be."""
    if consumer is Finished.FULLY or (consumer is Finished.PARTLY and all_to_all):
        return {Finished.FULLY}
    return {Finished.PARTLY, Finished.FULLY} if consumer is Finished.PARTLY else set(Finished)
