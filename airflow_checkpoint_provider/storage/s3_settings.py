"""How to reach an S3 service. Runs anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from airflow_checkpoint_provider.errors import StoreMisconfigured

_ENDPOINT = re.compile(r"https?://[^/@?#\s]+/?", re.IGNORECASE)
_STYLES = ("auto", "path", "virtual")


@dataclass(frozen=True)
class S3Settings:
    """Where the service is and how to get credentials. Its ``repr`` shows neither keys nor tokens.

    Without keys, role and profile the usual places are asked: environment, shared files, container, instance. A role is
    assumed with what the rest says, and renewed by itself. ``addressing_style`` is ``path`` by default where there is an
    endpoint, else ``auto``. ``verify`` is whether certificates are checked, or the path of a bundle to check against.
    """

    endpoint_url: str | None = None
    region_name: str | None = None
    addressing_style: str | None = None
    verify: bool | str = True
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    profile_name: str | None = None

    def __post_init__(self) -> None:
        if self.endpoint_url is not None and not _ENDPOINT.fullmatch(
            self.endpoint_url
        ):  # not shown: may hold a password
            raise StoreMisconfigured(
                "endpoint_url is not of the form http://host:port or https://host:port. Correct it"
            )
        if self.addressing_style not in (None, *_STYLES):
            raise StoreMisconfigured(
                f"addressing_style is {self.addressing_style!r}. Write one of {', '.join(_STYLES)}"
            )
        given = filter(None, (self.access_key_id, self.secret_access_key, self.session_token))
        if any(character.isspace() for value in given for character in value):  # an error of the client would show it
            raise StoreMisconfigured("key id, secret or session token holds a space or a line break. Paste it again")
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise StoreMisconfigured("there is a key id without secret, or a secret without key id. Give both or none")
