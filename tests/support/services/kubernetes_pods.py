"""Pods as processes: each runs its container's command on the host, and tells its status and its log. Runs on Linux.

There are no images: a container has the host's programs and files, and no volumes of its own. What a pod cannot be given here, it is
refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from tests.support.services.hosts import Host, Hosted
from tests.support.services.kubernetes_objects import ApiError, Object, Objects, now

GRACE = 30.0  # seconds between SIGTERM and SIGKILL, unless a request says otherwise
EXPANDED = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


@dataclass
class RunningPod:
    """The process of a pod. ``seen`` has each whole line of its log with the time at which the server saw it."""

    hosted: Hosted
    started: str = field(default_factory=now)
    finished: str | None = None
    deleted: bool = False
    seen: list[tuple[float, str]] = field(default_factory=list)
    _looking: Lock = field(default_factory=Lock)

    def look(self) -> bool:
        """Read the log further. Return whether the process lives."""
        with self._looking:  # a log that is followed is read beside other requests
            lives = self.hosted.code is None  # asked before the log: what it wrote before its end, is read
            *whole, last = self.hosted.said().split("\n")
            if last and not lives:
                whole.append(last)
            self.seen += [(time.time(), line) for line in whole[len(self.seen) :]]
            if not lives and self.finished is None:
                self.finished = now()
            return lives

    @property
    def phase(self) -> str:
        if self.look():
            return "Running"
        return "Failed" if self.hosted.code else "Succeeded"

    def state(self) -> Object:
        """Return the state of the container."""
        if self.look():
            return {"running": {"startedAt": self.started}}
        code = self.hosted.shell_code
        reason = "Error" if code else "Completed"
        return {
            "terminated": {"exitCode": code, "reason": reason, "startedAt": self.started, "finishedAt": self.finished}
        }

    def status(self, pod: Object) -> Object:
        """Return what kubelet says of the pod."""
        lives, container = self.look(), pod["spec"]["containers"][0]
        status = {
            "name": container["name"], "image": container.get("image") or "", "imageID": "", "ready": lives, "started": lives,
            "restartCount": 0, "state": self.state(), "lastState": {},
        }  # fmt: skip
        conditions = {"PodScheduled": True, "Initialized": True, "ContainersReady": lives, "Ready": lives}
        return {
            "phase": self.phase, "startTime": self.started, "hostIP": "127.0.0.1", "podIP": "127.0.0.1", "qosClass": "BestEffort",
            "conditions": [{"type": name, "status": str(true), "lastTransitionTime": self.started} for name, true in conditions.items()],
            "containerStatuses": [status],
        }  # fmt: skip

    def follow(self, stopped: Callable[[], bool], *, follow: bool, since: float, timestamps: bool) -> Iterator[str]:
        """Yield the lines that were seen after ``since``, a Unix time; with ``follow`` until the process ends or the server stops."""
        number = 0
        while True:
            lives = self.look()
            for at, line in self.seen[number:]:
                if at >= since:
                    yield f"{_stamp(at)} {line}\n" if timestamps else f"{line}\n"
            number = len(self.seen)
            if not (follow and lives) or stopped():
                return
            time.sleep(0.1)

    def end(self, grace: float) -> None:
        self.deleted = True
        self.hosted.end(grace)


def _stamp(at: float) -> str:
    whole, fraction = divmod(at, 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int(fraction * 1e9):09d}Z"


def start_pod(pod: Object, host: Host, objects: Objects) -> RunningPod:
    """Start the container of a pod. Raise ``ApiError`` for what this server does not have."""
    spec = pod.get("spec") or {}
    containers = spec.get("containers") or []
    if len(containers) != 1 or spec.get("initContainers"):
        raise ApiError(422, "Invalid", "this server runs pods of one container")
    (container,) = containers
    if not container.get("command"):
        raise ApiError(422, "Invalid", "this server has no images, so a container needs a command")
    variables = variables_of(container, pod, objects)
    words = [*container["command"], *(container.get("args") or ())]
    return RunningPod(_run(host, [_expanded(word, variables) for word in words], variables))


def _run(host: Host, command: list[str], variables: Mapping[str, str]) -> Hosted:
    try:
        return host.run(command, variables)
    except OSError as error:  # Kubernetes gives such a container this exit code
        return host.run(["sh", "-c", 'echo "$1"; exit 128', "sh", f"StartError: {error}"], variables)


def variables_of(container: Object, pod: Object, objects: Objects) -> dict[str, str]:
    """Return the environment that a container names. Raise ``ApiError`` if it refers to what is not there."""
    namespace, found = pod["metadata"]["namespace"], dict[str, str]()
    for source in container.get("envFrom") or ():
        found |= _all_of(source, namespace, objects)
    for variable in container.get("env") or ():
        refers = variable.get("valueFrom")
        value = _referred(refers, pod, objects) if refers else _expanded(variable.get("value") or "", found)
        found[variable["name"]] = value
    return found


def _all_of(source: Object, namespace: str, objects: Objects) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    for kind, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
        if reference := source.get(kind):
            return {prefix + key: value for key, value in objects.values(plural, namespace, reference["name"]).items()}
    raise ApiError(422, "Invalid", f"this server does not know the variables of {source}")


def _referred(refers: Object, pod: Object, objects: Objects) -> str:
    namespace = pod["metadata"]["namespace"]
    for kind, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if reference := refers.get(kind):
            return objects.value(plural, namespace, reference["name"], reference["key"])
    path = (refers.get("fieldRef") or {}).get("fieldPath", "")
    value: Any = {**pod, "status": {"podIP": "127.0.0.1", "hostIP": "127.0.0.1"}}
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        raise ApiError(422, "Invalid", f"this server does not know the variable of {refers}")
    return str(value)


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` as Kubernetes does; an unknown name stays as it is."""
    return EXPANDED.sub(lambda found: variables.get(found[1], found[0]), text)
