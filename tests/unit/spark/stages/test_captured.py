"""What a Python function has captured is read from its pickle: plain values have texts, others have none, and nothing runs."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import importlib
import math
import operator
import re
import sys
import types
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

from airflow_checkpoint_provider.spark.stages.captured import WHOLE, captured_by

PICKLER: Any = importlib.import_module("pyspark.cloudpickle")  # it has no types
OF_A_SCRIPT = types.ModuleType("of_a_script")
OF_A_SCRIPT.__dict__["rate"] = 7


class Color(enum.Enum):
    RED = 1


def texts_of(function: Callable[..., Any]) -> list[tuple[str, str | None]]:
    """Return names and texts of what a function has captured, as PySpark pickles it for its workers."""
    script = sys.modules[__name__]
    PICKLER.register_pickle_by_value(script)  # as the main script is
    try:
        pickled = PICKLER.dumps((function, None))
    finally:
        PICKLER.unregister_pickle_by_value(script)
    return sorted(captured_by(pickled, lambda name: "token" in name), key=repr)


def read(function: Callable[..., Any]) -> dict[str, str | None]:
    """Return the texts by name, without that of the whole function."""
    return {name: text for name, text in texts_of(function) if name != WHOLE}


def text(value: Any) -> str | None:
    """Return the text of a captured value; that of the whole function if the value is a function, a class or a module."""
    found = dict(texts_of(lambda: value))
    return found.get("value", found[WHOLE])


def keys(*names: str) -> Any:
    return dict.fromkeys(names).keys()


DIFFERENT = [
    (10, 20),
    (1, 1.0),
    (1, True),
    ("10", 10),
    ([10**5000], [10**5000 + 1]),
    (b"a", bytearray(b"a")),
    (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
    (Decimal("1.10"), Decimal("1.1")),
    (np.float64(1), np.float64(2)),
    (np.array([1, 2]), np.array([1, 3])),
    (np.array([[1, 2]]), np.array([[1], [2]])),
    ({"a": [1, (2, None)]}, {"a": [1, (3, None)]}),
    ({"x", "y"}, {"x", "z"}),
    (["a", "b"], ["ab"]),
    (keys("x"), keys("y")),
    (collections.deque([1, 2]), collections.deque([2, 1])),
    (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)),
    (collections.Counter("aab"), collections.Counter("abb")),
    (collections.defaultdict(int, a=1), collections.defaultdict(int, a=2)),
    (re.compile("a"), re.compile("a", re.IGNORECASE)),
    (operator.itemgetter(1), operator.itemgetter(2)),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (functools.partial(int, base=8), functools.partial(int, base=16)),
    (math.floor, math.ceil),
    (math, np),
    (int, float),
]


@pytest.mark.parametrize(("value", "other"), DIFFERENT)
def test_other_values_have_other_texts(value: Any, other: Any) -> None:
    assert None not in (text(value), text(other))
    assert text(value) != text(other)
    assert text(value) == text(value)


def test_chosen_function_of_the_script_has_its_name() -> None:
    def net(x: int) -> int:
        return x

    def gross(x: int) -> int:
        return x

    assert None not in (text(net), text(gross))
    assert text(net) != text(gross)


def test_equal_collections_have_one_text_in_any_order() -> None:
    """The rows of a table that is collected come in any order."""
    assert text({1: "a", 2: {"b": 3, "c": 4}}) == text({2: {"c": 4, "b": 3}, 1: "a"})
    assert text({"a", "b", "c"}) == text({"c", "b", "a"})
    assert text(collections.defaultdict(list, a=1, b=2)) == text(collections.defaultdict(list, b=2, a=1))
    part = [1, 2]
    assert text([part, part]) == text([[1, 2], [1, 2]])


def tree(depth: int) -> dict[str, Any]:
    return {"leaf": "yes"} if not depth else {"below": depth, "left": tree(depth - 1), "right": tree(depth - 1)}


def test_text_of_nested_values_is_short() -> None:
    known = text(tree(10))
    assert known
    assert len(known) < 100
    assert known != text(tree(9))
    shared: Any = "leaf"
    for _ in range(60):
        shared = [shared, shared]
    assert len(text(shared) or "") < 100, "each part is read once"


def test_value_that_holds_itself_has_no_text() -> None:
    node: dict[str, Any] = {"rate": 7}
    node["self"] = node
    rate = 7
    assert read(lambda: (node, rate)) == {"node": None, "rate": "int 7"}


def test_attributes_of_classes_and_functions_of_the_script_are_compared() -> None:
    def texts(rate: int) -> dict[str, str | None]:
        class Base:
            tax = rate

        class Config(Base):
            rate = 1

            @property
            def net(self) -> int:
                return self.rate

            @classmethod
            def gross(cls) -> int:
                return cls.rate + cls.tax

        @dataclasses.dataclass
        class Limits:
            low: int = rate

        class Mode(enum.Enum):
            A = rate

        class Point(NamedTuple):
            x: int = rate

        def inner() -> None: ...

        inner.rate = rate  # type: ignore[attr-defined]
        return read(lambda: (Config.rate, Config.gross, Limits, Mode, Point, inner))

    one, same, other = texts(7), texts(7), texts(19)
    assert one == same
    assert [name for name, known in one.items() if known is None] == []
    changed = {name for name in one if one[name] != other[name]}
    assert {"Base.tax", "Limits.low", "Mode.A", "inner.rate"} <= changed
    assert not {"Config.rate", "Config.gross"} & changed


def rated(rate: int) -> Callable[[int], int]:
    return lambda x: x * rate


def ruled(rate: int) -> type:
    class Rule:
        def apply(self) -> int:
            return rate

    return Rule


@pytest.mark.parametrize("made", [rated, ruled])
def test_values_belong_to_the_functions_and_classes_that_hold_them(made: Callable[[int], Any]) -> None:
    a, b = made(7), made(19)
    assert text([a, b, a]) != text([a, b, b])
    assert text({"DE": a, "FR": b}) != text({"DE": b, "FR": a})
    one, same = {"DE": a, "FR": b}, {"FR": b, "DE": a}

    def of(nets: Any) -> list[tuple[str, str | None]]:
        return texts_of(lambda: nets)

    assert of(one) == of(same)

    def chosen(first: Any, second: Any) -> Any:
        return lambda: (first, second)

    assert texts_of(chosen(a, b)) != texts_of(chosen(b, a))
    assert texts_of(chosen(a, b)) == texts_of(chosen(made(7), made(19)))


def test_bases_and_private_attributes_of_classes_are_compared() -> None:
    def texts(base: type, rate: int) -> list[tuple[str, str | None]]:
        rule = type("Rule", (base,), {"__rates__": (rate,), "_rate_": rate})
        return texts_of(lambda: rule)

    assert texts(Decimal, 7) == texts(Decimal, 7)
    assert texts(Decimal, 7) != texts(Decimal, 8)
    assert texts(Decimal, 7) != texts(Fraction, 7)


def test_function_that_calls_itself_is_read() -> None:
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    assert texts_of(factorial) == texts_of(factorial)
    assert None not in dict(texts_of(factorial)).values()


def test_large_text_is_read_once() -> None:
    large = "a" * 10**5
    assert len(text([large] * 1000) or "") < 100
    assert text(large) != text(large[1:])


def test_member_of_an_enumeration_is_a_value() -> None:
    class Mode(enum.Enum):
        A = 1
        B = 2

    assert None not in (text(Mode.A), text(Mode.B))
    assert text(Mode.A) != text(Mode.B)
    assert text(Color.RED)


def test_module_that_the_script_has_made_is_a_value() -> None:
    known = text(OF_A_SCRIPT)
    OF_A_SCRIPT.__dict__["rate"] = 8
    assert known
    assert known != text(OF_A_SCRIPT)


@dataclasses.dataclass
class Named:
    rate: int


def test_object_of_the_script_hides_no_value_beside_it() -> None:
    class Point(NamedTuple):
        x: int

    rate = 7
    for value in (Named(1), Point(2), object()):
        found = read(lambda value=value: (value, rate))
        assert (found["value"], found["rate"]) == (None, "int 7")


def test_nothing_of_a_pickle_runs() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("it was called",))

    assert text(Trap()) is None


def test_secret_has_no_text_wherever_it_stands() -> None:
    def function(x: int, api_token: str = "s3cret", rate: int = 7) -> Any:
        return x, api_token, rate

    assert read(function) == {"api_token": None, "rate": "int 7"}
    assert text({"conf": [{"token": "s3cret"}]}) is None
    assert text(functools.partial(function, api_token="s3cret")) is None

    class Config:
        token = "s3cret"
        rate = 7

    assert read(lambda: Config)["Config.token"] is None
    assert read(lambda: Config)["Config.rate"] == "int 7"

    def read_token() -> None: ...

    assert text(read_token), "the name of a function is no secret"


def test_names_belong_to_the_last_parameters() -> None:
    def function(x: int, y: int = 1, *more: int, z: int = 3) -> Any:
        return x, y, more, z

    assert read(function) == {"y": "int 1", "z": "int 3"}


def test_damaged_pickle_is_an_object() -> None:
    assert dict(captured_by(b"no pickle", lambda _: False)) == {"an object": None}
