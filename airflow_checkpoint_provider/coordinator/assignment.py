"""The assignment of restored states to the states of the job. Pure. Runs anywhere.

States are matched by uid; ``rename`` maps an old uid to a new one. A restored state that the job does not claim is
*unclaimed*. It is dropped only if the job allows it, and it is an error where the job may have used a wrong name. An
empty state is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from airflow_checkpoint_provider.errors import (
    InvalidConfig,
    KindChanged,
    NonRestoredState,
    RenameConflict,
    StateNotFound,
)
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.keys import check_uid
from airflow_checkpoint_provider.protocol.metadata import (
    Acknowledgement,
    Provenance,
    Seal,
    StateSnapshot,
    kind_in_words,
)

States = Mapping[str, StateSnapshot]
"""By uid."""
AnyProvenance = TypeVar("AnyProvenance", bound=Provenance)
KEEP, DROP = "keep", "drop"
Allowed = bool | str | Mapping[str, str]
"""The decision on unclaimed states: True drops all, "keep" keeps all, a mapping decides by uid, False decides nothing."""
AllowanceOption = bool | str | Sequence[str] | Mapping[str, str]
"""``allow_non_restored_state`` as people write it: also a list of the uids to drop."""


# -- unclaimed states ------------------------------------------------------------------------------------------------


def check_allowance(option: AllowanceOption) -> Allowed:
    """Return ``allow_non_restored_state`` in its stored form. Raises ``InvalidConfig``, and ``InvalidName`` for an invalid uid."""
    if isinstance(option, bool):
        return option
    if option == KEEP:
        return KEEP
    pairs = _by_uid(option)
    if pairs is None or not all(isinstance(uid, str) and fate in (KEEP, DROP) for uid, fate in pairs):
        raise InvalidConfig(
            f'allow_non_restored_state={option!r}: write True, False, "keep", a list of the uids to drop, ["totals"],'
            ' or both by uid, {"weekly": "keep", "totals": "drop"}'
        )
    return {check_uid(uid): fate for uid, fate in pairs}


def _by_uid(option: object) -> list[tuple[Any, Any]] | None:
    """Return pairs of uid and decision, unchecked; None for anything but a mapping or a list."""
    if isinstance(option, Mapping):
        return list(option.items())
    if isinstance(option, Sequence) and not isinstance(option, str):
        return [(uid, DROP) for uid in option]
    return None


def unclaimed(restored: States, claimed: Collection[str]) -> tuple[str, ...]:
    """Return the uids of restored states that are not empty and that the job did not claim."""
    held = {uid for uid, state in restored.items() if state.file_sets or state.value is not None}
    return tuple(sorted(held.difference(claimed)))


def split_allowed(uids: Iterable[str], allowed: Allowed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the uids that are dropped, and the uids that are kept."""
    unclaimed_uids = tuple(uids)
    dropped = tuple(uid for uid in unclaimed_uids if _fate(uid, allowed) == DROP)
    return dropped, tuple(uid for uid in unclaimed_uids if uid not in dropped)


def undecided(uids: Iterable[str], allowed: Allowed) -> tuple[str, ...]:
    """Return the uids about which the job has decided nothing."""
    return tuple(uid for uid in uids if _fate(uid, allowed) is None)


def decided_by_name(uids: Iterable[str], allowed: Allowed) -> set[str]:
    """Return the uids that the job's decision lists. Such a decision counts also for states that a decision on all leaves as they are."""
    return set(uids) & set(allowed) if isinstance(allowed, Mapping) else set()


def _fate(uid: str, allowed: Allowed) -> str | None:
    """Return the job's decision on an unclaimed state; None if it has decided nothing."""
    if isinstance(allowed, Mapping):
        return allowed.get(uid)
    return DROP if allowed is True else allowed or None


def refuse_wrong_names(
    unclaimed_states: Iterable[StateSnapshot],
    new: Mapping[str, Collection[str]],
    allowed: Allowed,
    loop: str | None = None,
    in_turns: Collection[str] = (),
) -> None:
    """Raise ``NonRestoredState`` if an unclaimed state and a new one of its kind may be the same state under two names.

    :param unclaimed_states: of earlier runs, or of turns that are not run again.
    :param new: the uids that this run uses and the history did not have, by kind.
    :param loop: the loop whose turns are not stored yet; None at the end of the script.
    :param in_turns: the uids that stored turns have used.
    """
    undecided = [state for state in unclaimed_states if _fate(state.uid, allowed) is None]
    by_kind = {kind: [state.uid for state in undecided if state.kind == kind] for kind, uids in new.items() if uids}
    pairs = [(kind_in_words(kind), missing, sorted(new[kind])) for kind, missing in by_kind.items() if missing]
    if pairs:
        stored = sorted({uid for _, _, uids in pairs for uid in uids if uid in in_turns})
        raise _non_restored(pairs, loop, stored)


def _non_restored(
    pairs: Sequence[tuple[str, Sequence[str], Sequence[str]]], loop: str | None, stored: Sequence[str]
) -> NonRestoredState:
    """Return the error. ``pairs`` are a kind in words, the uids that the script has not used, and the new ones. Turns have used ``stored``."""
    uids = [uid for _, missing, _ in pairs for uid in missing]
    found = ", and ".join(_pair(*pair, loop) for pair in pairs)
    ended = (
        f"The attempt ended before it stored turns of {loop}, and the corrected script runs them. If the script uses {_quoted(uids)} later, move"
        f" {'them' if len(uids) > 1 else 'it'} before the loop, or allow it as below."
        if loop
        else "The attempt ended before its last checkpoint. Its stages and checkpoints are kept, and the corrected script reuses them."
    )
    if stored and not loop:
        ended += f" So it does with stored turns, which have used {_quoted(stored)}. To run them again, restore with --from run-start."
    (_, missing, new), *others = pairs
    known = not others and len(missing) == len(new) == 1  # of several, nobody knows which belong together
    rename = f"{missing[0]}={new[0]}" if known else "OLD=NEW"
    return NonRestoredState(
        f"The script {found}. Is that a wrong name? {ended} If the name is wrong, write {_quoted(uids)} in the script. If the state has"
        f" another name now, restore it with --rename {rename}. To keep"
        f" {_quoted(uids)} unused, set {wording.keeping(uids)}. To drop {'them' if len(uids) > 1 else 'it'}, set"
        f" allow_non_restored_state={json.dumps(uids, ensure_ascii=False)}",
        uid=uids[0],
    )


def _pair(kind: str, missing: Sequence[str], new: Sequence[str], loop: str | None) -> str:
    old_ones, new_ones = (f"{kind}{'s' * (len(uids) > 1)} {_quoted(uids)}" for uids in (missing, new))
    begin = "begin without restored states" if len(new) > 1 else "begins without a restored state"
    if loop:
        return f"has not used the restored {old_ones} so far, and used the new {new_ones}, which {begin}"
    return f"did not use the restored {old_ones}, and used the new {new_ones}, which {begin}"


def _quoted(uids: Iterable[str]) -> str:
    """Return uids for a sentence."""
    *others, last = (f"'{uid}'" for uid in uids)
    return f"{', '.join(others)} and {last}" if others else last


def check_kind(state: StateSnapshot, kind: str) -> None:
    """Raise ``KindChanged`` if a restored state is requested as another kind."""
    if state.kind != kind:
        restored, wanted = kind_in_words(state.kind), kind_in_words(kind)
        raise KindChanged(
            f"'{state.uid}' is a {restored} in the checkpoint, but the script uses the name for a {wanted}. Give the {wanted} another uid. The"
            f' {restored} is then kept; allow_non_restored_state=["{state.uid}"] drops it'
        )


# -- other names -------------------------------------------------------------------------------------------------------


def check_rename(option: object) -> dict[str, str]:
    """Return ``rename`` in its stored form. Raises ``InvalidConfig`` and ``RenameConflict``."""
    if not isinstance(option, Mapping):
        raise InvalidConfig(f'rename={option!r}: write the new uids by the old ones, {{"totals": "sums"}}')
    names = list(option.values())
    if twice := [name for name in names if names.count(name) > 1]:
        raise RenameConflict(
            f"rename={option!r}: two states would be called '{twice[0]}', and one would be lost. Choose another name for one of them"
        )
    return dict(option)


def renamed(states: States, rename: Mapping[str, str]) -> dict[str, StateSnapshot]:
    """Return the states under their new uids; references between them are renamed too.

    Raises ``StateNotFound``, ``RenameConflict``.
    """
    if unknown := [uid for uid in rename if uid not in states]:
        names = ", ".join(f"'{name}'" for name in sorted(states)) or "none"
        raise StateNotFound(
            f"rename names '{unknown[0]}', but the checkpoint holds no such state (it holds {names}): a typing error would lose the"
            " one that was meant. Nothing was changed. Write one of these, or leave it out",
            uid=unknown[0],
        )
    result: dict[str, StateSnapshot] = {}
    for uid, state in states.items():
        name = check_uid(rename.get(uid, uid))
        if name in result:
            raise RenameConflict(
                f"rename: two states would be called '{name}', and one would be lost: '{result[name].uid}' and '{uid}'. Nothing was"
                " changed. Choose another name for one of them"
            )
        result[name] = state
    return {name: _under(state, name, rename) for name, state in result.items()}


def rename_states_in(seal: Seal, rename: Mapping[str, str], application: str = "") -> Seal:
    """Return the seal with the new uids in one application: in its states, and in the values with which its run began."""
    ack = _acknowledgement(seal, application)
    states = renamed({state.uid: state for state in ack.states}, rename)
    renamed_ack = replace(
        ack,
        states=tuple(states[uid] for uid in sorted(states)),
        run_values=_keys(ack.run_values, rename),
        run_objects=tuple(sorted(_keys(dict.fromkeys(ack.run_objects), rename))),
        unused=tuple(sorted(rename.get(uid, uid) for uid in ack.unused)),
    )
    return replace(seal, applications={**seal.applications, application: renamed_ack})


def _under(state: StateSnapshot, name: str, rename: Mapping[str, str]) -> StateSnapshot:
    """Return the state under its new name. Its files stay where they are, below the old name."""
    loop = state.loop
    if loop is not None:
        loop = replace(
            _made_from(loop, rename),
            frames=_keys(loop.frames, rename),
            writes=_keys(loop.writes, rename),
            writes_before=_keys(loop.writes_before, rename),
            own_values=tuple(rename.get(uid, uid) for uid in loop.own_values),
            opened=tuple(rename.get(uid, uid) for uid in loop.opened),
            used=tuple(rename.get(uid, uid) for uid in loop.used),
            broken_off=loop.broken_off and rename.get(loop.broken_off, loop.broken_off),
        )
    query = state.query
    if query is not None:
        edges = (replace(edge, upstream=rename.get(edge.upstream, edge.upstream)) for edge in query.edges)
        query = replace(query, edges=tuple(edges))
    return replace(
        state,
        uid=name,
        stage=state.stage and _made_from(state.stage, rename),
        files=state.files and _made_from(state.files, rename),
        query=query,
        loop=loop,
    )


def _made_from(detail: AnyProvenance, rename: Mapping[str, str]) -> AnyProvenance:
    """Return what a state of a run was made from, with the new uids."""
    before = detail.stage_before
    return replace(detail, stage_before=before and rename.get(before, before), values=_keys(detail.values, rename))


def _keys(by_uid: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    """Return the values by their new uids. If a new name is that of an earlier state, the renamed state replaces it."""
    same = {uid: value for uid, value in by_uid.items() if uid not in rename}
    return same | {rename[uid]: value for uid, value in by_uid.items() if uid in rename}


# -- one application of several ----------------------------------------------------------------------------------------


def _acknowledgement(seal: Seal, application: str) -> Acknowledgement:
    ack = seal.applications.get(application)
    if ack is None:
        names = ", ".join(f"'{name}'" for name in sorted(seal.applications))
        raise StateNotFound(
            f"chk-{seal.id} holds nothing of application '{application}', only of {names}: it would begin empty. Name one of these,"
            " or a checkpoint whose plan holds it"
        )
    return ack
