"""A newer Airflow, in which a name that is not public is gone or changed. Only this package sees that; Airflow runs as it is. Runs where
Airflow is."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest

from airflow_checkpoint_provider import _airflow


def changed(*, argument_of_a_newer_release: object) -> None:
    """Take other arguments than a call of this package passes."""


class Instead(types.ModuleType):
    """A module in which ``_airflow.py`` finds ``replacement``, or nothing, under one name."""

    def __init__(self, module: types.ModuleType, name: str, replacement: object) -> None:
        super().__init__(module.__name__)
        self.__annotations__ = {key: value for key, value in module.__annotations__.items() if key != name}

        def find(asked: str) -> Any:
            if asked == name and sys._getframe(1).f_globals["__name__"] == _airflow.__name__:
                if replacement is None:
                    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
                return replacement
            return getattr(module, asked)

        self.__dict__["__getattr__"] = find


def replace(monkeypatch: pytest.MonkeyPatch, dotted: str, replacement: object = None) -> None:
    """Let ``_airflow.py`` find ``replacement`` under a dotted name; by default the name is gone."""
    path, _, name = dotted.rpartition(".")
    package, _, leaf = path.rpartition(".")
    instead = Instead(importlib.import_module(path), name, replacement)
    monkeypatch.setitem(sys.modules, path, instead)
    monkeypatch.setattr(sys.modules[package], leaf, instead)
