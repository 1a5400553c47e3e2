"""The errors: one root, stable codes, builtin base classes, and texts. Runs anywhere."""

from __future__ import annotations

import builtins
import importlib
import inspect
import pickle
import re

import pytest

from airflow_checkpoint_provider import checkpoint, errors
from airflow_checkpoint_provider.errors import CheckpointError, Refused, StoreError, all_errors, printable

ALL = [error for error in all_errors() if error.__module__ == errors.__name__]
LEAVES = [error for error in ALL if not set(error.__subclasses__()) & set(ALL)]
BUILTINS = {kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)} - {
    Exception
}

PERMANENT = {
    *(
        "InvalidName",
        "InvalidConfig",
        "NotSupportedYet",
        "UnsupportedType",
        "WrongUse",
        "AttemptEnding",
        "VersionMismatch",
        "NotInstalled",
        "PartMissing",
    ),
    *(
        "StoreMisconfigured",
        "NoObject",
        "FormatTooNew",
        "Damaged",
        "OtherIncarnation",
        "HistoryGone",
        "CheckpointNotFound",
        "NothingToCompare",
    ),
    *(
        "CheckpointWasAborted",
        "EndedAfterStop",
        "RunFinished",
        "Superseded",
        "TwoOwners",
        "RunIsOlder",
        "StateRequired",
    ),
    *(
        "NotHealthy",
        "RestoreTooOld",
        "SinkMoved",
        "SinkTaken",
        "NotNamed",
        "SourceMoved",
        "RenameConflict",
        "StateNotFound",
        "KindChanged",
        "NonRestoredState",
    ),
    *("OverwrittenSince", "RowsStand", "RowsRefused"),
    *("NotInParts", "PartsDiffer", "ItemsChanged", "SchemaChanged"),
    *("AlreadyClaimed", "OrphanSavepoint", "OtherSavepoint", "SavepointDisposed"),
}


def names(several: list[type[CheckpointError]]) -> list[str]:
    return [error.__name__ for error in several]


@pytest.mark.parametrize("error", ALL, ids=names(ALL))
def test_error_has_its_own_code(error: type[CheckpointError]) -> None:
    """A search for an inherited code would find the wrong page. tests/unit/project/test_codes.py checks that no code is used twice."""
    assert re.fullmatch(r"CKP\d{3}", vars(error)["code"])


@pytest.mark.parametrize("error", LEAVES, ids=names(LEAVES))
def test_leaf_error_has_a_builtin_base_or_is_a_refusal(error: type[CheckpointError]) -> None:
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
    ids=lambda kind: kind.__name__,
)
def test_error_is_caught_by_its_builtin(error: type[CheckpointError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise error("said; do this")


def test_store_errors_are_not_subclasses_of_each_other() -> None:
    """None of them is a ``LookupError``, which would mean *absent*."""
    kinds = (errors.StoreDenied, errors.StoreMisconfigured, errors.StoreUnavailable, errors.CommitStateUnknown)
    for kind in kinds:
        assert issubclass(kind, StoreError)
        assert not issubclass(kind, LookupError)
        assert [other for other in kinds if issubclass(kind, other)] == [kind]


def test_permanent_errors_are_those_listed() -> None:
    assert {error.__name__ for error in ALL if error.permanent} == PERMANENT


@pytest.mark.parametrize("error", ALL, ids=names(ALL))
def test_error_shows_its_text_and_code(error: type[CheckpointError]) -> None:
    raised = error("chk-7 is pending; ask again", id=7)
    assert str(raised) == f"chk-7 is pending; ask again  [{error.code}]"
    assert (raised.message, raised.about) == ("chk-7 is pending; ask again", {"id": 7})
    assert error.__doc__


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("перед 変更 é 🙂", "перед 変更 é 🙂"),
        ("one\ntwo\r\nthree\tfour\u2028five\xa0six", "one two  three four five six"),
        ("\x1b[2J\x1b]0;title\x07\x7f\x9b1m", r"\x1b[2J\x1b]0;title\x07\x7f\x9b1m"),
        ("\u202eevil\u2066\u200b", r"\u202eevil\u2066\u200b"),
        ("half \udcff", r"half \udcff"),
    ],
)
def test_error_is_one_printable_line(text: str, shown: str) -> None:
    assert CheckpointError(text).message == shown == printable(shown)


@pytest.mark.parametrize("quoted", ["a:" * 10_000_000 + "@", "x" * 5_000, "\x1b[2J" * 400])
def test_error_that_quotes_a_long_text_keeps_what_is_said_before_and_behind_it(quoted: str) -> None:
    message = CheckpointError(f"the entry of {quoted} is broken. Restore an older checkpoint").message
    assert len(message) <= errors.LONGEST_MESSAGE + len(" … ")
    assert message.startswith("the entry of ")
    assert message.endswith(" is broken. Restore an older checkpoint")


def test_key_in_a_long_text_is_not_printed() -> None:
    """It is longer than a message, and is taken out before the message is shortened."""
    message = CheckpointError(f"s3://name:{'secret' * 1_000}@bucket is not there").message
    assert message == "s3://***@bucket is not there"


@pytest.mark.parametrize("error", ALL, ids=names(ALL))
def test_error_is_equal_after_pickling(error: type[CheckpointError]) -> None:
    restored = pickle.loads(pickle.dumps(error("text", id=7)))  # noqa: S301 -- our own, as a process pool sends it back
    assert (type(restored), str(restored), restored.about) == (error, str(error("text")), {"id": 7})


def named_in(package: str) -> set[str]:
    """Return the errors that the docstrings of a package's public names name."""
    module = importlib.import_module(f"airflow_checkpoint_provider.{package}")
    exported = [getattr(module, name) for name in module.__all__]
    members = [
        member
        for one in exported
        if inspect.isclass(one)
        for name, member in vars(one).items()
        if not name.startswith("_")
    ]
    words = {word for one in (*exported, *members) for word in re.findall(r"``(\w+)``", inspect.getdoc(one) or "")}
    return words & {error.__name__ for error in ALL}


@pytest.mark.parametrize("package", ["assets", "checkpoint", "operators", "sensors", "spark", "task_groups"])
def test_errors_that_public_docstrings_name_are_public(package: str) -> None:
    assert named_in(package) <= set(checkpoint.__all__)
