"""The types of stored fields, with the conditions that reading checks. Runs anywhere.

A record from storage may be damaged or hostile. A value that could lead out of its history, or make code fail far from
here, is refused when it is read.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from airflow_checkpoint_provider.errors import InvalidConfig, InvalidName
from airflow_checkpoint_provider.policies.retention import POLICIES
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.keys import QUERY, STATE, check_uid, is_job_id, pointer_of
from airflow_checkpoint_provider.protocol.kinds import KINDS
from airflow_checkpoint_provider.protocol.records import Check, known_kind, of_newer_kind

OUTCOMES = ("finished", "failed", "cancelled", "suspended", "lost")
"""How an attempt or a launch ends."""

_FOLDER = re.compile(r"(state|query)/[A-Za-z0-9~][A-Za-z0-9._~-]*/[1-9]\d{0,17}-[A-Za-z0-9_-]+", re.ASCII)


def is_time(text: str) -> bool:
    """Return whether a text is a time with a zone, which each other zone knows."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.tzinfo is not None and 1970 <= moment.astimezone(UTC).year < 9999
    except (ValueError, OverflowError):
        return False


def _is_checkpointing(data: dict[str, Any]) -> bool:
    _refuse_newer_policy(data.get("retention"))
    try:
        return not data or bool(CheckpointConfig.from_json(data))
    except (InvalidConfig, ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return False


def _refuse_newer_policy(retention: Any) -> None:
    """Raise ``FormatTooNew`` if a policy is of a kind that a later version added."""
    if not isinstance(retention, dict):
        return
    if isinstance(retention.get("keep"), str) and retention["keep"] not in POLICIES:
        raise of_newer_kind("a stored retention policy", retention["keep"])
    for part in retention["of"] if isinstance(retention.get("of"), list) else ():
        _refuse_newer_policy(part)


def _is_uid(text: str) -> bool:
    try:
        return bool(check_uid(text))
    except InvalidName:
        return False


def _is_pointer(text: str) -> bool:
    try:
        return bool(pointer_of(text))
    except InvalidName:
        return False


def _is_folder(text: str, kind: str) -> bool:
    found = _FOLDER.fullmatch(text)
    return found is not None and found[1] == kind


def is_file_name(text: str) -> bool:
    """Return whether ``text`` is a path below its file set: plain segments, none of them hidden."""
    return all(re.match(r"[^.]", segment) for segment in text.split("/")) and text.isprintable()


Number = Annotated[
    int, Check(lambda number: 1 <= number < 10**18, "number (1 or more)")
]  # more than a pointer can name
"""An id, an epoch, a launch."""
Size = Annotated[int, Check(lambda number: number >= 0, "size")]
"""Bytes, rows, or another count."""
MemorySize = Annotated[
    str, Check(lambda text: bool(re.fullmatch(r"[1-9][0-9]{0,11}[mg]", text)), "size of memory, such as 16g")
]
Seconds = Annotated[float, Check(lambda number: number >= 0, "duration in seconds")]
Rate = Annotated[float, Check(lambda number: number >= 0, "number of rows per second")]
Time = Annotated[str, Check(is_time, "time with a zone")]
TimeOrEmpty = Annotated[str, Check(lambda text: not text or is_time(text), "time with a zone")]
JobId = Annotated[str, Check(is_job_id, "job id")]
JobIdOrEmpty = Annotated[str, Check(lambda text: not text or is_job_id(text), "job id")]
Uid = Annotated[str, Check(_is_uid, "name of a state")]
FileSetPath = Annotated[str, Check(lambda text: _is_folder(text, STATE), "path of a file set")]
LocationPath = Annotated[str, Check(lambda text: _is_folder(text, QUERY), "path of a query's location")]
PointerText = Annotated[str, Check(_is_pointer, "pointer of a checkpoint or a savepoint")]
Uri = Annotated[str, Check(lambda text: ":" in text, "URI")]
Batch = Annotated[int, Check(lambda number: -1 <= number < 10**18, "number of a batch, or -1 for none")]
SinkEntry = Annotated[
    str,
    Check(lambda text: bool(re.fullmatch(r"[0-9]{1,18}(\.compact)?", text)), "name of an entry in the log of a sink"),
]
TransactionName = Annotated[
    str, Check(lambda text: bool(re.fullmatch(r"[1-9][0-9]{0,17}-[0-9a-f]{16}", text)), "name of a transaction")
]
"""The epoch of the attempt that prepared it, and a nonce: no name is used twice."""
FileName = Annotated[str, Check(is_file_name, "name of a file")]
Outcome = Annotated[str, Check(OUTCOMES.__contains__, "outcome")]
KindName = Annotated[str, Check(known_kind("a stored checkpoint", KINDS), "kind of checkpoint")]
Checkpointing = Annotated[dict[str, Any], Check(_is_checkpointing, "configuration of checkpoints")]
Plan = Annotated[tuple[str, ...], Check(bool, "plan: it names no application")]
Epochs = Annotated[tuple[Number, ...], Check(bool, "list of attempts: it names none")]
