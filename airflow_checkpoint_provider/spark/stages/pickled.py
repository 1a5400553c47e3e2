"""Reads the pickle of a Python function with stand-ins for all that it names, so that nothing of it runs. Runs in the Spark driver.

PySpark's pickler writes functions and classes of the script by value: by calls of its own functions, which are known here by name. It
writes what can be imported by its name.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from airflow_checkpoint_provider.spark.stages.installed import is_installed

PICKLER = "pyspark.cloudpickle"
LONG = 100  # a text or bytes of more is given by a digest
LONG_TYPES = (str, bytes, bytearray)
PLAIN = (bool, int, float, *LONG_TYPES, type(None))
VALUES = {
    *(
        ("builtins", name)
        for name in ("classmethod", "complex", "getattr", "property", "range", "slice", "staticmethod")
    ),
    *(("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
    *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
    *(("operator", name) for name in ("attrgetter", "itemgetter", "methodcaller")),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    *(
        ("_collections", "_tuplegetter"),
        ("dataclasses", "_HAS_DEFAULT_FACTORY_CLASS"),
        ("decimal", "Decimal"),
        ("functools", "partial"),
        ("numpy", "dtype"),
        ("re", "_compile"),
    ),
    *((PICKLER, name) for name in ("_make_dict_items", "_make_dict_keys", "_make_dict_values", "dynamic_subimport")),
}
"""The classes and functions whose results are values: their arguments say all."""
PYTHONS_OWN = {
    "__abstractmethods__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dataclass_fields__", "__dataclass_params__",
    "__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__qualname__", "__slots__",
    "__static_attributes__", "__type_params__", "__weakref__", "_abc_impl",
}  # fmt: skip
"""The attributes that Python itself gives to classes. They follow from the code, which belongs to the application."""


class StandIn:
    """Stands for an object of a class, or for the result of a function, that was not called. Its subclasses stand for the class."""

    module = name = ""
    plain = False
    """Whether its objects are values."""
    args: tuple[Any, ...]
    items: list[tuple[Any, Any]]

    def __new__(cls, *args: Any, **named: Any) -> StandIn:
        made = super().__new__(cls)
        made.args, made.items = args, list(named.items())
        return made

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *args: Any) -> StandIn:
        return StandIn(self, *args)

    def __setstate__(self, state: Any) -> None:
        self.args = (*self.args, state)

    def append(self, item: Any) -> None:
        self.args = (*self.args, item)

    def __setitem__(self, key: Any, item: Any) -> None:
        self.items.append((key, item))


class Class(StandIn):
    """A class that was pickled by value. ``data`` are its bases and attributes, or the members of an enumeration."""

    data: dict[str, Any]

    @classmethod
    def held(cls) -> Iterable[tuple[str, Any]]:
        """Yield names and values of its attributes: ``Config.rate``."""
        return ((f"{cls.name}.{name}", value) for name, value in cls.data.items())


class Function(StandIn):
    """A function that was pickled by value. ``state`` is what Python keeps of it, ``attributes`` are those that the script has set."""

    attributes: dict[str, Any]
    state: dict[str, Any]

    def held(self) -> Iterable[tuple[str, Any]]:
        """Yield name and value of what it has captured: by its closure, globals, defaults and attributes."""
        code, state = self.args[0], self.state
        cells = (cell.args[0] if cell.args else None for cell in state["__closure__"] or ())
        yield from zip(code.args[-2], cells, strict=False)  # the names of its free variables
        yield from state["__globals__"].items()
        defaults, parameters = state["__defaults__"] or (), code.args[9][: code.args[0]]
        yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
        yield from (state["__kwdefaults__"] or {}).items()
        yield from ((f"{state['__name__']}.{name}", value) for name, value in self.attributes.items())


class Inspector(pickle.Unpickler):
    """Reads one pickle. ``holders`` are the functions and classes that it holds by value."""

    def __init__(self, command: bytes) -> None:
        super().__init__(io.BytesIO(command))
        self.holders: list[Function | type[Class]] = []

    def find_class(self, module: str, name: str) -> Any:
        if not module.startswith(PICKLER):
            return _stand_in(module, name)
        own: dict[str, Callable[..., Any]] = {
            "_builtin_type": lambda name: _stand_in("types", name),
            "_class_setstate": _set_class,
            "_function_setstate": self._set_function,
            "_make_function": Function,
            "_make_skeleton_class": lambda _, name, bases, named, *__: self._class(
                named.get("__module__"), name, {"__bases__": bases}
            ),
            "_make_skeleton_enum": lambda _, name, __, members, module, *___: self._class(
                module, name, members, plain=True
            ),
        }
        return own.get(name) or _stand_in(PICKLER, name)

    def _class(self, module: str, name: str, members: dict[str, Any], *, plain: bool = False) -> type[Class]:
        made = type(name, (Class,), {"module": module, "name": name, "plain": plain, "data": dict(members)})
        self.holders.append(made)
        return made

    def _set_function(self, function: Function, state: Any) -> None:
        function.attributes, function.state = state
        function.module, function.name = function.state["__module__"], function.state["__qualname__"]
        self.holders.append(function)


def _stand_in(module: str, name: str) -> type[StandIn]:
    return type(name, (StandIn,), {"module": module, "name": name, "plain": (module, name) in VALUES})


def _set_class(made: type[Class], state: Any) -> None:
    """Keep the attributes that the script gave to a class. Those of ``Enum`` begin and end with an underscore."""
    attributes, _ = state
    of_enum = made.plain
    made.data.update(
        (name, value)
        for name, value in attributes.items()
        if name not in PYTHONS_OWN and not (of_enum and name[0] == name[-1] == "_")
    )


def is_of_library(value: Any) -> bool:
    """Tell whether a function or class that was pickled by value is of an installed package. What it holds may differ in each driver: a
    folder of its own, for example.
    """
    return is_installed(value.module)


def code_name(value: Any) -> str | None:
    """Return the name of a function, a class or a module; None of another value."""
    if isinstance(value, Function) or (isinstance(value, type) and issubclass(value, StandIn)):
        return f"{value.module}.{value.name}"
    is_module = isinstance(value, StandIn) and (value.module, value.name) == (PICKLER, "subimport")
    return str(value.args[0]) if is_module else None


class Texts:
    """Gives texts to values: equal texts to equal values, and to large ones a digest. The text of a function or class has its name and what
    it holds; its code belongs to the application.

    :param secret: tells whether a name is that of a secret. What holds a secret has no text.
    """

    def __init__(self, secret: Callable[[str], bool]) -> None:
        self._secret = secret
        self._known: dict[int, str | None] = {}

    def under(self, name: str, value: Any) -> str | None:
        """Return the text of a named value, which stays alive as long as this object; None if it is secret or not plain, or cannot be read."""
        try:
            return self._under(name, value)
        except Exception:  # noqa: BLE001  # nested too deeply, for example; the stage must go on
            return None

    def _under(self, name: Any, value: Any) -> str | None:
        return None if isinstance(name, str) and self._secret(name) and not code_name(value) else self._of(value)

    def _of(self, value: Any) -> str | None:
        if isinstance(value, int):  # Python prints none of more than 4,300 digits
            return f"{type(value).__name__} {value:x}"
        if isinstance(value, PLAIN) and not (isinstance(value, LONG_TYPES) and len(value) > LONG):
            return f"{type(value).__name__} {value!r}"
        if id(value) not in self._known:
            name = code_name(value)
            self._known[id(value)] = f"code {name}" if name else None  # for one that holds itself
            self._known[id(value)] = self._of_code(name, value) if name else self._of_others(value)
        return self._known[id(value)]

    def _of_code(self, name: str, value: Any) -> str:
        """Return the text of a function, a class or a module. What has no text in it is named by itself."""
        by_value = isinstance(value, Function) or (isinstance(value, type) and issubclass(value, Class))
        if not by_value or is_of_library(value):
            return f"code {name}"
        held = [(key, self._under(key, one)) for key, one in value.held()]
        return _joined(f"code {name}", [f"{key} {text or 'no text'}" for key, text in held]) or ""

    def _of_others(self, value: Any) -> str | None:
        if isinstance(value, PLAIN):
            return _joined(type(value).__name__, [repr(value)])
        if isinstance(value, StandIn):
            items = self._of_items(value.items, ordered=value.name == "OrderedDict")
            return _joined(f"{value.module}.{value.name}", [*map(self._of, value.args), items]) if value.plain else None
        if isinstance(value, dict):
            return self._of_items(value.items())
        texts = map(self._of, value)
        return _joined(type(value).__name__, texts, ordered=not isinstance(value, set | frozenset))

    def _of_items(self, items: Iterable[tuple[Any, Any]], *, ordered: bool = False) -> str | None:
        """Return the text of a dict. Its order does not count, as it does not for Python: rows of a table come in any order."""
        texts = [_joined("", [self._of(key), self._under(key, value)]) for key, value in items]
        return _joined("dict", texts, ordered=ordered)


def _joined(kind: str, texts: Iterable[str | None], *, ordered: bool = True) -> str | None:
    found = list(texts)
    known = [text for text in found if text is not None]
    if len(known) < len(found):
        return None
    digest = hashlib.sha256()
    for text in known if ordered else sorted(known):
        encoded = text.encode()
        digest.update(b"%d:%b" % (len(encoded), encoded))
    return f"{kind} {digest.hexdigest()}"
