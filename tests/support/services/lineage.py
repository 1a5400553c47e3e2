"""A server that takes the events of OpenLineage, as of its API v1. It starts nothing. Runs on Linux."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from werkzeug.wrappers import Request, Response

from tests.support.services.answers import json_response
from tests.support.services.hosts import Host
from tests.support.services.service import Service

ENDPOINT = "api/v1/lineage"
NAMESPACE = {"AIRFLOW__OPENLINEAGE__NAMESPACE": "tests"}


class Lineage(Service):
    """``events`` has what came, in its order, ``keys`` the headers by which its senders were authorized."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.events: list[Mapping[str, Any]] = []
        self.keys: set[str | None] = set()

    @property
    def variables(self) -> dict[str, str]:
        """Return the configuration of Airflow's provider."""
        transport = {"type": "http", "url": self.url, "endpoint": ENDPOINT}
        return {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport), **NAMESPACE}

    def launches(self, request: Request) -> bool:
        return False

    def answer(self, request: Request) -> Response:
        self.events.append(request.get_json(force=True))
        self.keys.add(request.headers.get("Authorization"))
        return json_response({}, 201)

    def refused(self, status: int, text: str) -> Response:
        return json_response({"message": text}, status)
