"""JSON answers of the services. Runs anywhere."""

from __future__ import annotations

import json
from typing import Any

from werkzeug.wrappers import Response


def json_response(body: Any, status: int = 200) -> Response:
    return Response(json.dumps(body), status, content_type="application/json")
