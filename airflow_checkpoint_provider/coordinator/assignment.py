"""Which restored state goes to which state of the job. Pure. Runs anywhere.

States are matched by uid; ``rename`` leads from an old uid to a new one. What nobody claims is *left over*, and is never
dropped without a word that allows it: True for whatever it may be, or a list of uids. An empty state is no loss, and is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_checkpoint_provider.errors import (
    InvalidConfig,
    KindChanged,
    RenameConflict,
    StateNotFound,
)
from airflow_checkpoint_provider.protocol.keys import check_uid
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, StateSnapshot, kind_in_words

States = Mapping[str, StateSnapshot]
"""By uid."""
Allowed = bool | tuple[str, ...]
"""What may be left behind: nothing, anything, or these uids."""


# -- what nobody claims ------------------------------------------------------------------------------------------------


def allowance(given: bool | Sequence[str]) -> Allowed:
    """``allow_non_restored_state`` as somebody wrote it. Raises ``InvalidConfig``, and ``InvalidName`` for what is no uid."""
    if isinstance(given, bool):
        return given
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
        raise InvalidConfig(f'allow_non_restored_state={given!r}: write True, False, or a list of uids, ["totals"]')
    for uid in given:
        check_uid(uid)
    return tuple(given)


def unclaimed(restored: States, claimed: Collection[str]) -> tuple[str, ...]:
    """The uids of what was restored, is not empty, and was claimed by nobody."""
    return tuple(sorted(uid for uid, state in restored.items() if uid not in claimed and not _is_empty(state)))


def split_allowed(uids: Iterable[str], allowed: Allowed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of what is left over: what may be dropped, and what not."""
    several = tuple(uids)
    dropped = tuple(uid for uid in several if allowed is True or (allowed and uid in allowed))
    return dropped, tuple(uid for uid in several if uid not in dropped)


def check_kind(state: StateSnapshot, kind: str) -> None:
    """Raise ``KindChanged`` if a restored state is asked for as another kind."""
    if state.kind != kind:
        here, asked = kind_in_words(state.kind), kind_in_words(kind)
        raise KindChanged(
            f"'{state.uid}' is a {here} in the restored checkpoint, the job asks for a {asked} of that name: it would be lost."
            f" Give the {asked} a uid of its own; the {here} is then handed on, or dropped with"
            f' allow_non_restored_state=["{state.uid}"]'
        )


def _is_empty(state: StateSnapshot) -> bool:
    return not state.file_sets and state.value is None


# -- other names -------------------------------------------------------------------------------------------------------


def renaming(given: object) -> dict[str, str]:
    """``rename`` as somebody wrote it. Raises ``InvalidConfig`` and ``RenameConflict``."""
    if not isinstance(given, Mapping):
        raise InvalidConfig(f'rename={given!r}: write the new uids by the old ones, {{"totals": "sums"}}')
    names = list(given.values())
    if twice := [name for name in names if names.count(name) > 1]:
        raise RenameConflict(
            f"rename={given!r}: two states would be called '{twice[0]}', and one would be lost. Choose another name for one of them"
        )
    return dict(given)


def renamed(states: States, rename: Mapping[str, str]) -> dict[str, StateSnapshot]:
    """The states under their new uids, also where they name each other. Raises ``StateNotFound``, ``RenameConflict``."""
    _are_there(rename, states, "rename")
    found: dict[str, StateSnapshot] = {}
    for uid, state in states.items():
        name = check_uid(rename.get(uid, uid))
        if name in found:
            raise RenameConflict(
                f"rename: two states would be called '{name}', and one would be lost: '{found[name].uid}' and '{uid}'. Nothing was"
                " changed. Choose another name for one of them"
            )
        found[name] = state
    return {name: _under(state, name, rename) for name, state in found.items()}


def renamed_in(seal: Seal, rename: Mapping[str, str], application: str = "") -> Seal:
    """A checkpoint in which the states of one application, and the values with which its run began, have their new uids."""
    ack = _acknowledgement(seal, application)
    states = renamed({state.uid: state for state in ack.states}, rename)
    mine = replace(ack, states=tuple(states[uid] for uid in sorted(states)), run_values=_keys(ack.run_values, rename))
    return replace(seal, applications={**seal.applications, application: mine})


def _under(state: StateSnapshot, name: str, rename: Mapping[str, str]) -> StateSnapshot:
    """The files stay where they are, below the old name."""
    detail = state.stage
    if detail is not None:
        detail = replace(detail, before=_keys(detail.before, rename), values=_keys(detail.values, rename))
    return replace(state, uid=name, stage=detail)


def _keys(by_uid: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    """Where the name of a state that is gone is given anew, its last trace makes room."""
    same = {uid: one for uid, one in by_uid.items() if uid not in rename}
    return same | {rename[uid]: one for uid, one in by_uid.items() if uid in rename}


# -- one application of several ----------------------------------------------------------------------------------------


def _acknowledgement(seal: Seal, application: str) -> Acknowledgement:
    found = seal.applications.get(application)
    if found is None:
        there = ", ".join(f"'{one}'" for one in sorted(seal.applications))
        raise StateNotFound(
            f"chk-{seal.id} holds nothing of application '{application}', only of {there}: it would begin empty. Name one of these,"
            " or a checkpoint whose plan holds it"
        )
    return found


def _are_there(uids: Iterable[str], states: States, option: str) -> None:
    for uid in uids:
        if uid not in states:
            there = ", ".join(f"'{one}'" for one in sorted(states)) or "none"
            raise StateNotFound(
                f"{option} names '{uid}', but the checkpoint holds no such state (it holds {there}): a typing error would lose the"
                " one that was meant. Nothing was changed. Write one of these, or leave it out",
                uid=uid,
            )
