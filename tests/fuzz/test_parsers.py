"""Every parser of words: of a person, a connection, a configuration, the hand-over, a stored plan. Runs anywhere."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.hooks.s3_connection import s3_settings
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin, retention_from_json
from airflow_checkpoint_provider.protocol import keys
from airflow_checkpoint_provider.protocol.config import CheckpointConfig, seconds
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import LaunchReference, LaunchSettings
from airflow_checkpoint_provider.protocol.records import canonical, parse
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.stages.plan_diff import LONGEST, difference_from_stored
from airflow_checkpoint_provider.storage import MemoryStore, S3Settings, open_store
from tests.fuzz.mutations import CONTROL, ODD, attack, hurt_json, short_and_long

WORDS = [
    *(word for word in ODD if isinstance(word, str)),
    *(
        "orders",
        "flights_etl.delays",
        "clean",
        "10 min",
        "1.5 h",
        "500ms",
        "٣ s",
        "9" * 400 + " d",
        "1e5",
        "-1 s",
        "inf",
    ),
    *(
        "s3://lake/ckp",
        "s3a://b",
        "s3n://K:S@b/k",
        "file:/x",
        "file:///x",
        "memory://a",
        "https://k:s@h",
        "chk-7",
        "007",
    ),
    *("jobs/orders/job/chk-1", "s3://lake/jobs/orders/runs/a/items/b/chk-3/_metadata", "s3://lake/savepoint-a-1-b//"),
    *("/", "//", "a//b", "\0", "\udc80", "\ud800x", CONTROL, "~", "./a:b", "%2e%2e/x", "{}*?[", "a" * 300),
]
SETTINGS = LaunchSettings(
    root="s3://lake",
    history="jobs/orders/job",
    launch=3,
    s3={"region_name": "eu"},
    job="orders",
    token=Token(dag="etl", run="r", task="t"),
    try_number=1,
    checkpointing=CheckpointConfig(retention=KeepLatest(2) | KeepWithin(days=7) & KeepAll()),
    allow_non_restored_state={"clean": "drop"},
)
EXTRA = {
    "endpoint_url": "https://h:9000",
    "region_name": "eu",
    "addressing_style": "path",
    "role_arn": "arn:x",
    "profile_name": "p",
    "aws_access_key_id": "id",
    "aws_secret_access_key": "key",
    "verify": True,
    "service_config": {"s3": {"endpoint_url": "http://h"}},
}
STORED_PLAN = Plan(
    digest="d",
    read="r",
    text='schema {"type":"struct","fields":[{"name":"id","type":"long"}]}\nconf a=1\nanalysed\nRelation [id]\nexact\nx',
    leaves=({"leaf": "Parquet", "paths": ["in"], "options": ["a"], "values": "v"}, {"leaf": "stage", "uid": "a", "file_set": "b"}),
    python=False,
    local_rows=False,
    inputs=("a",),
    sorted=False,
)  # fmt: skip


def hurt_data(data: Any, chance: random.Random) -> Any:
    """Return the JSON with values changed."""
    return json.loads(hurt_json(json.dumps(data).encode(), chance))


def word(chance: random.Random) -> str:
    """Return a word, or two that are one."""
    text = chance.choice(WORDS)
    return text + chance.choice(["", "", "/", " ", "\n"]) + chance.choice([*[""] * 20, *WORDS])


def names(chance: random.Random) -> None:
    text = word(chance)
    keys.time_in(text)
    keys.is_job_id(text)
    keys.checkpoint_id(text)
    parsers: list[Callable[[str], object]] = [keys.check_job_id, keys.check_uid, keys.pointer_of, keys.Pointer.parse]
    parsers += [keys.SavepointPointer.parse, lambda text: seconds(text, "timeout"), open_store]
    for parser in parsers:
        with contextlib.suppress(CheckpointError):
            parser(text)
    with contextlib.suppress(CheckpointError):
        token = keys.safe_token(text)
        assert 0 < len(token) <= keys.LONGEST_NAME
        assert "/" not in token


def configuration(chance: random.Random) -> None:
    assert SETTINGS.checkpointing
    data = hurt_data(SETTINGS.checkpointing.to_json(), chance)
    with contextlib.suppress(CheckpointError):
        canonical(CheckpointConfig.from_json(data).to_json())
    with contextlib.suppress(CheckpointError):
        canonical(retention_from_json(data.get("retention")).to_json())


def handover(chance: random.Random) -> None:
    confs: dict[str, str] = SETTINGS.to_confs()
    for _ in range(chance.choice([1, 1, 2])):
        name = chance.choice(list(confs))
        value: str | None = chance.choice([word(chance), confs[name][:-1], None])
        if confs[name].startswith("{") and chance.random() < 0.7:
            with contextlib.suppress(ValueError):  # it was cut before
                value = json.dumps(hurt_data(json.loads(confs[name]), chance))
        confs.pop(name)
        confs |= {} if value is None else {name: value}
        with contextlib.suppress(CheckpointError):
            LaunchReference.from_confs(confs)
        with contextlib.suppress(CheckpointError):
            LaunchSettings.from_confs(confs)
        if not confs:
            break


def extras(chance: random.Random) -> None:
    extra = hurt_data(EXTRA, chance)
    with contextlib.suppress(CheckpointError):
        settings = s3_settings(Connection(conn_id="c", conn_type="spark_checkpoint"), extra)
        assert isinstance(settings, S3Settings)


def stored_plan(chance: random.Random) -> None:
    store = MemoryStore()
    body = hurt_json(canonical({"v": 1, **STORED_PLAN.to_json()}), chance)
    store.create("plan.json", body)
    line = difference_from_stored(store, "plan.json", STORED_PLAN, lambda text: text)
    with contextlib.suppress(CheckpointError):
        Plan.from_json(parse(body, "plan.json"))
        assert len(line) <= LONGEST


@pytest.mark.parametrize(
    "parser", [names, configuration, handover, extras, stored_plan], ids=lambda parser: parser.__name__
)
@short_and_long(100, 20_000)
def test_hurt_words_are_refused_by_typed_errors(parser: Callable[[random.Random], None], inputs: int) -> None:
    attack(lambda seed: parser(random.Random(seed)), parser.__name__, inputs)
