"""The errors: one root, stable codes, builtins that a caller would catch, a text that says what to do. Runs anywhere."""

from __future__ import annotations

import builtins
import pickle
import re

import pytest

from airflow_checkpoint_provider import checkpoint, errors
from airflow_checkpoint_provider.errors import CheckpointError, Refused, StoreError, all_errors

ALL = [error for error in all_errors() if error.__module__ == errors.__name__]
LEAVES = [error for error in ALL if not set(error.__subclasses__()) & set(ALL)]
BUILTINS = {one for one in vars(builtins).values() if isinstance(one, type) and issubclass(one, Exception)} - {
    Exception
}

PERMANENT = {
    *(
        "InvalidName",
        "InvalidConfig",
        "NotSupportedYet",
        "UnsupportedType",
        "WrongUse",
        "VersionMismatch",
        "NotInstalled",
    ),
    *("StoreMisconfigured", "FormatTooNew", "Damaged", "OtherIncarnation", "HistoryGone", "CheckpointNotFound"),
    *("Aborted", "RunFinished", "Superseded", "TwoOwners", "OlderRun", "StateRequired"),
    *("RenameConflict", "StateNotFound", "KindChanged"),
    *("AlreadyClaimed", "OrphanSavepoint", "OtherSavepoint", "SavepointDisposed"),
}


def names(several: list[type[CheckpointError]]) -> list[str]:
    return [one.__name__ for one in several]


@pytest.mark.parametrize("error", ALL, ids=names(ALL))
def test_every_error_has_a_code_of_its_own(error: type[CheckpointError]) -> None:
    """Inherited, a search for it would find the wrong page. That none stands twice is tested beside the table of codes."""
    assert re.fullmatch(r"CKP\d{3}", vars(error)["code"])


@pytest.mark.parametrize("error", LEAVES, ids=names(LEAVES))
def test_a_leaf_is_what_a_caller_would_catch(error: type[CheckpointError]) -> None:
    assert set(error.__mro__) & (BUILTINS | {Refused})


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.StoreDenied, PermissionError),
        (errors.StoreMisconfigured, ValueError),
        (errors.StoreUnavailable, ConnectionError),
        (errors.CommitStateUnknown, TimeoutError),
        (errors.CheckpointNotFound, LookupError),
        (errors.HistoryGone, LookupError),
        (errors.StateRequired, LookupError),
        (errors.Damaged, ValueError),
        (errors.InvalidName, ValueError),
        (errors.UnsupportedType, TypeError),
        (errors.NotSupportedYet, NotImplementedError),
        (errors.Superseded, RuntimeError),
    ],
    ids=lambda one: one.__name__,
)
def test_which_builtin(error: type[CheckpointError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise error("said; do this")


def test_three_errors_of_the_store_are_none_of_each_other() -> None:
    """Denied, misconfigured and unavailable are told apart; none of them is "absent"."""
    kinds = (errors.StoreDenied, errors.StoreMisconfigured, errors.StoreUnavailable, errors.CommitStateUnknown)
    for one in kinds:
        assert issubclass(one, StoreError)
        assert not issubclass(one, LookupError)
        assert [other for other in kinds if issubclass(one, other)] == [one]


def test_what_no_retry_can_mend() -> None:
    assert {error.__name__ for error in ALL if error.permanent} == PERMANENT


@pytest.mark.parametrize("error", ALL, ids=names(ALL))
def test_an_error_says_its_text_and_its_code_and_what_it_is_about(error: type[CheckpointError]) -> None:
    one = error("chk-7 is pending; ask again", id=7)
    assert str(one) == f"chk-7 is pending; ask again  [{error.code}]"
    assert (one.message, one.about) == ("chk-7 is pending; ask again", {"id": 7})
    assert error.__doc__


@pytest.mark.parametrize("error", ALL, ids=names(ALL))
def test_an_error_crosses_processes_whole(error: type[CheckpointError]) -> None:
    one = pickle.loads(pickle.dumps(error("text", id=7)))  # noqa: S301 -- our own, as a process pool sends it back
    assert (type(one), str(one), one.about) == (error, str(error("text")), {"id": 7})


def test_what_authors_of_dags_and_jobs_catch_is_exported() -> None:
    """The list of exports is an agreement; it grows."""
    assert set(checkpoint.__all__) == {
        *("CheckpointConfig", "KeepAll", "KeepLatest", "KeepWithin"),
        *(
            "CheckpointError",
            "CheckpointNotFound",
            "CommitStateUnknown",
            "Damaged",
            "JobAlreadyRunning",
            "JobSuspended",
        ),
        *("StateRequired", "StoreDenied", "StoreError", "StoreMisconfigured", "StoreUnavailable", "Superseded"),
    }
    assert all(hasattr(checkpoint, name) for name in checkpoint.__all__)
