"""One mistake in the provider's description stops every ``airflow`` command: Airflow's own schema decides."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its stubs are another package
import pytest

import airflow_checkpoint_provider
from airflow_checkpoint_provider.get_provider_info import get_provider_info

ROOT = Path(airflow_checkpoint_provider.__file__).parents[1]
INFO = get_provider_info()


def modules() -> Iterator[str]:
    for kind in ("operators", "hooks", "sensors", "triggers"):
        for entry in INFO.get(kind, []):
            yield from entry["python-modules"]


def attributes() -> Iterator[str]:
    yield from (entry["hook-class-name"] for entry in INFO["connection-types"])
    yield from INFO["cli"]
    yield from INFO["notifications"]
    yield from INFO["extra-links"]


def test_provider_info_matches_airflows_schema() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


@pytest.mark.parametrize("name", list(modules()))
def test_modules_exist(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize("name", list(attributes()))
def test_classes_and_functions_exist(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_guides_exist() -> None:
    guides = [guide for integration in INFO["integrations"] for guide in integration["how-to-guide"]]
    assert [guide for guide in guides if not Path(ROOT, guide.removeprefix("/")).exists()] == []


def test_connection_type_is_that_of_the_hook() -> None:
    from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook as Hook

    (kind,) = INFO["connection-types"]
    assert (kind["connection-type"], kind["hook-name"]) == (Hook.conn_type, Hook.hook_name)
    assert kind["hook-class-name"] == f"{Hook.__module__}.{Hook.__qualname__}"


def test_form_has_a_root_and_the_fields_of_s3() -> None:
    from airflow_checkpoint_provider.hooks.s3_connection import FIELDS

    (kind,) = INFO["connection-types"]
    fields: dict[str, Any] = kind["conn-fields"]
    assert fields["root"]["schema"]["type"] == "string"  # without "null": obligatory
    others = fields.keys() - {"root", "code"}
    addressing = fields["addressing_style"]["schema"]
    assert addressing["values_display"]["null"] == "not set"  # else the form shows "null"
    assert None in addressing["enum"]  # what the form sends for it
    assert others < FIELDS, "what the form offers, the hook knows"
    assert FIELDS - others == {"login", "password", "aws_access_key_id", "aws_secret_access_key", "service_config"}
    assert all("null" in fields[name]["schema"]["type"] and fields[name]["description"] for name in {*others, "code"})
    assert fields["aws_session_token"]["schema"]["format"] == "password"
    assert set(kind["ui-field-behaviour"]["hidden-fields"]) == {"host", "port", "schema", "extra"}
