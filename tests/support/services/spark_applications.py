"""What the Spark operator of Kubernetes makes of a ``SparkApplication``: a submission, a driver pod and a status. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.services.kubernetes_objects import ApiError, Object, Objects
from tests.support.services.kubernetes_pods import RunningPod, variables_of
from tests.support.services.submission import Submission, given, listed

DRIVER = "spark-kubernetes-driver"
LISTS = {
    "pyFiles": "--py-files", "files": "--files", "jars": "--jars", "archives": "--archives", "packages": "--packages",
    "repositories": "--repositories", "excludePackages": "--exclude-packages",
}  # fmt: skip
SIZES = {
    ("driver", "cores"): "spark.driver.cores", ("driver", "memory"): "spark.driver.memory",
    ("driver", "memoryOverhead"): "spark.driver.memoryOverhead", ("driver", "javaOptions"): "spark.driver.extraJavaOptions",
    ("executor", "cores"): "spark.executor.cores", ("executor", "memory"): "spark.executor.memory",
    ("executor", "instances"): "spark.executor.instances", ("executor", "memoryOverhead"): "spark.executor.memoryOverhead",
    ("executor", "javaOptions"): "spark.executor.extraJavaOptions",
}  # fmt: skip
STATES = {"Running": "RUNNING", "Succeeded": "COMPLETED", "Failed": "FAILED"}


def check(application: Object) -> None:
    """Raise ``ApiError`` for what this server does not do."""
    spec = application.get("spec") or {}
    if (spec.get("restartPolicy") or {}).get("type", "Never") != "Never":
        raise ApiError(422, "Invalid", "this server starts a driver once: restartPolicy.type must be Never")
    if not spec.get("mainApplicationFile"):
        raise ApiError(422, "Invalid", "spec.mainApplicationFile is required")


def driver_pod(application: Object) -> Object:
    """Return the pod of the driver, with its variables as the operator puts them there."""
    name, spec = application["metadata"]["name"], application["spec"]
    driver = spec.get("driver") or {}
    secrets = [
        {"name": variable, "valueFrom": {"secretKeyRef": reference}}
        for variable, reference in (driver.get("envSecretKeyRefs") or {}).items()
    ]
    plain = [{"name": variable, "value": value} for variable, value in (driver.get("envVars") or {}).items()]
    labels = {
        **(driver.get("labels") or {}), "spark-role": "driver", "spark-app-name": name, "sparkoperator.k8s.io/app-name": name,
        "sparkoperator.k8s.io/launched-by-spark-operator": "true",
    }  # fmt: skip
    container = {
        "name": DRIVER, "image": spec.get("image") or "", "command": ["spark-submit"], "envFrom": driver.get("envFrom") or [],
        "env": [*plain, *secrets, *(driver.get("env") or [])],
    }  # fmt: skip
    owner = {
        "apiVersion": application["apiVersion"], "kind": application["kind"], "name": name, "uid": application["metadata"]["uid"],
        "controller": True,
    }  # fmt: skip
    metadata = {"name": f"{name}-driver", "labels": labels, "ownerReferences": [owner]}
    metadata["annotations"] = driver.get("annotations") or {}
    spec = {"containers": [container], "restartPolicy": "Never", "serviceAccountName": driver.get("serviceAccount")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def submission(application: Object, pod: Object, objects: Objects) -> Submission:
    """Return what the operator submits."""
    spec = application["spec"]
    confs = {f"spark.hadoop.{name}": str(value) for name, value in (spec.get("hadoopConf") or {}).items()}
    confs |= {name: str(value) for name, value in (spec.get("sparkConf") or {}).items()}
    confs |= {
        conf: str(_at(spec, part, name)) for (part, name), conf in SIZES.items() if _at(spec, part, name) is not None
    }
    deps: Mapping[str, Any] = spec.get("deps") or {}
    lists = [word for name, option in LISTS.items() for word in listed(option, deps.get(name))]
    options = [*given("--class", spec.get("mainClass")), "--name", application["metadata"]["name"], *lists]
    arguments = [str(argument) for argument in spec.get("arguments") or ()]
    environment = variables_of(pod["spec"]["containers"][0], pod, objects)
    return Submission(
        application=spec["mainApplicationFile"],
        arguments=arguments,
        confs=confs,
        options=options,
        environment=environment,
    )


def _at(spec: Object, part: str, name: str) -> Any:
    return (spec.get(part) or {}).get(name)


def status(application: Object, running: RunningPod) -> Object:
    """Return the status that the operator writes."""
    state = {"state": "FAILED" if running.deleted else STATES[running.phase]}
    if running.deleted:
        state["errorMessage"] = "driver pod not found"
    elif running.phase == "Failed":
        state["errorMessage"] = f"driver container failed with ExitCode: {running.hosted.shell_code}, Reason: Error"
    name = application["metadata"]["name"]
    return {
        "applicationState": state, "driverInfo": {"podName": f"{name}-driver"}, "executionAttempts": 1, "submissionAttempts": 1,
        "lastSubmissionAttemptTime": running.started, "terminationTime": running.finished, "submissionID": application["metadata"]["uid"],
        "sparkApplicationId": f"spark-{application['metadata']['uid'].replace('-', '')}",
    }  # fmt: skip
