"""The arguments of public calls, checked at the line where their author wrote them. Runs anywhere."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from airflow_checkpoint_provider.errors import InvalidConfig

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Check = Callable[[str, Any], object]
"""Raises if the value cannot be used. The first argument names it: ``version``."""

UNKNOWN = re.compile(r"got an unexpected keyword argument '(\w+)'")
A_URI = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


def checks_arguments(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks arguments by name before each call. Raises ``InvalidConfig`` for those that the call does not have."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            check_call(function.__qualname__, signature, args, kwargs, checks)
            return function(*args, **kwargs)

        return call

    return decorate


def checks_options(dataclass: type[T]) -> type[T]:
    """Let a dataclass raise ``InvalidConfig`` for options that it does not have. It checks their values itself."""
    dataclass.__init__ = checks_arguments()(dataclass.__init__)  # type: ignore[method-assign]
    return dataclass


def check_call(
    call: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], checks: dict[str, Check]
) -> None:
    """Check the arguments of one call. Raises what a check raises, and ``InvalidConfig`` if the arguments do not fit ``signature``."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise InvalidConfig(f"{call.removesuffix('.__init__')}(): {error}. {_options(signature, str(error))}") from None
    for name, check in checks.items():
        if name in given:
            check(name, given[name])


def _options(signature: inspect.Signature, error: str) -> str:
    names = [name for name in signature.parameters if name != "self"]
    unknown = UNKNOWN.search(error)
    if near := difflib.get_close_matches(unknown[1], names, 1) if unknown else []:
        return f"Did you mean {near[0]}=?"
    return f"It takes {', '.join(names)}" if names else "It takes nothing"


def text(name: str, value: Any) -> None:
    """Raise ``InvalidConfig`` unless ``value`` is text or None."""
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f'{name}={value!r} is not text: write {name}="..."')


def flag(name: str, value: Any) -> None:
    """Raise ``InvalidConfig`` unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise InvalidConfig(f"{name}={value!r}: write {name}=True or {name}=False")


def path(name: str, value: Any) -> None:
    """Raise ``InvalidConfig`` unless ``value`` is text, a path, or None."""
    if value is not None and not isinstance(value, str | os.PathLike):
        raise InvalidConfig(f'{name}={value!r} is not a path: write {name}="/data/..." or {name}="s3://bucket/..."')
    if isinstance(value, os.PathLike) and A_URI.match(str(os.fspath(value))):
        raise InvalidConfig(f"{name}={value!r}: a Path drops a slash of a URI. Write it as text")


def as_text(value: str | os.PathLike[str] | None) -> str | None:
    """Return a path that ``path`` has checked as text."""
    return None if value is None else os.fspath(value)


def wait(name: str, value: Any) -> None:
    """Raise ``InvalidConfig`` unless ``value`` is a number of seconds, 0 or more, or None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if value is not None and not good:
        raise InvalidConfig(f"{name}={value!r}: write seconds, such as {name}=60")
