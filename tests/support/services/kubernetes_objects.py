"""Objects of Kubernetes in memory: names, versions, selectors, and the errors of its API. Runs anywhere."""

from __future__ import annotations

import base64
import copy
import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]
"""The kind in the plural, the namespace and the name."""


class ApiError(Exception):
    """``code`` is the status of HTTP, ``reason`` the word by which programs know it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def body(self) -> Object:
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(self), "reason": self.reason,
            "code": self.code,
        }  # fmt: skip


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass
class Objects:
    _objects: dict[Key, Object] = field(default_factory=dict)
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def create(self, plural: str, namespace: str, body: Object) -> Object:
        """Add an object. Raise ``ApiError`` 409 if the name is taken."""
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise ApiError(422, "Invalid", "name or generateName is required")
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        key = plural, namespace, metadata["name"]
        if key in self._objects:
            raise ApiError(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
        metadata |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        self._objects[key] = body
        self.touch(body)
        return body

    def touch(self, body: Object) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._versions))

    def read(self, plural: str, namespace: str, name: str) -> Object:
        """Return an object, to be changed in place. Raise ``ApiError`` 404."""
        try:
            return self._objects[plural, namespace, name]
        except KeyError:
            raise ApiError(404, "NotFound", f'{plural} "{name}" not found') from None

    def remove(self, plural: str, namespace: str, name: str) -> None:
        self._objects.pop((plural, namespace, name), None)

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((plural, namespace, name))

    def listed(self, plural: str, namespace: str) -> list[Object]:
        return [body for key, body in self._objects.items() if key[:2] == (plural, namespace)]

    def values(self, plural: str, namespace: str, name: str) -> dict[str, str]:
        """Return what a Secret or a ConfigMap holds. Raise ``ApiError`` if there is none, as a container then does not start."""
        data = self.read(plural, namespace, name).get("data") or {}
        if plural == "secrets":
            return {key: base64.b64decode(value).decode() for key, value in data.items()}
        return {key: str(value) for key, value in data.items()}

    def value(self, plural: str, namespace: str, name: str, key: str) -> str:
        """Return one of the values. Raise ``ApiError`` if it is not there."""
        try:
            return self.values(plural, namespace, name)[key]
        except KeyError:
            raise ApiError(404, "NotFound", f'{plural} "{name}" has no key {key}') from None


def with_data(secret: Object) -> Object:
    """Return a Secret whose ``stringData`` is among its ``data``, as Kubernetes keeps it."""
    texts = secret.pop("stringData", None) or {}
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return {**secret, "data": {**(secret.get("data") or {}), **encoded}}


def merged(old: Any, patch: Any) -> Any:
    """Return the merge patch of both: None removes a field, and lists are replaced."""
    if not isinstance(old, dict) or not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = {name: value for name, value in old.items() if patch.get(name, "") is not None}
    for name, value in patch.items():
        if value is not None:
            result[name] = merged(result.get(name), value)
    return result


def selects_labels(selector: str) -> Callable[[Object], bool]:
    """Return whether an object has the labels of ``a=1,b!=2,c,!d``. Raise ``ApiError`` for another form."""
    terms = _terms(selector)
    return lambda body: all(_selected(term, body["metadata"].get("labels") or {}) for term in terms)


def selects_fields(selector: str) -> Callable[[Object], bool]:
    """Return whether an object has the fields of ``status.phase!=Failed,metadata.name=x``."""
    terms = _terms(selector)
    return lambda body: all(_selected(term, dict(_flat("", body))) for term in terms)


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _flat(f"{path}.{name}" if path else name, below)
    elif not isinstance(value, list):
        yield path, str(value)


def _terms(selector: str) -> list[str]:
    if "(" in selector:
        raise ApiError(400, "BadRequest", f"the selectors of this server have no sets: {selector}")
    return [term.strip() for term in selector.split(",") if term.strip()]


def _selected(term: str, have: dict[str, str]) -> bool:
    if "!=" in term:
        name, value = term.split("!=")
        return have.get(name) != value
    if "=" in term:
        name, value = term.replace("==", "=").split("=")
        return have.get(name) == value
    return term[1:] not in have if term.startswith("!") else term in have
