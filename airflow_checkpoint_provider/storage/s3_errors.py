"""The meaning of each error of a request to S3, and the advice about it: one table. Runs anywhere.

Errors are looked up by the names of their classes, the nearest one first, so that nothing is imported here. "Surely not
applied" is said only where the server said so or nothing was sent; a 503 can follow the effect.
"""

from __future__ import annotations

import enum

from airflow_checkpoint_provider.errors import StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable


class Meaning(enum.Enum):
    """The outcome of a request."""

    ABSENT = "there is no such key"
    EXISTS = "the key was there already"
    NOT_APPLIED = "surely not applied; the same again may help"
    UNKNOWN = "perhaps applied, perhaps later"
    DENIED = "understood and refused"
    MISCONFIGURED = "not this store, or not in this way; the same again will not help"
    UNSUPPORTED = "misconfigured: the store does not know this request"
    DAMAGED = "the answer was cut or changed on the way; the same again may help"
    UNEXPLAINED = "404 without an error code of S3: cut on the way, or misconfigured; never taken for absent"


_ENDPOINT = "Check endpoint_url: scheme, host and port must be those of an S3 service"
_KEYS = "Check key id and secret; a proxy that changes host or path leads to this, too"
_TOKEN = "The session token is no longer good: give a new one, or a role, which is renewed by itself"
_IDENTITY = (
    "The web identity is no longer good: look at the file that AWS_WEB_IDENTITY_TOKEN_FILE names, and at who renews it"
)
_FULL = "Make room there (`checkpoints prune JOB`), or raise the quota; trying again may help"
_REGION = "Set region_name to the bucket's region"
_BUSY = "The store is busy; trying again may help"
_AGAIN = "Look at the store; trying again may help. If it never does: check endpoint_url"  # no S3 at all can look so
_OTHER = "The store gives this reason. If it is no S3 service: check endpoint_url"
_UNSUPPORTED = "This store lacks what checkpoints need (put with If-None-Match: *); choose another"
_NO_CREDENTIALS = (
    "Give key id and secret, role_arn or profile_name in the connection, or in the place where the job runs (environment,"
    " shared files, instance or container role)"
)
_CREDENTIAL_FILES = (
    "A file that gives the credentials cannot be used: check credential_process and web_identity_token_file of the profile,"
    " and AWS_WEB_IDENTITY_TOKEN_FILE"
)
_FAR_PROVIDER = "AWS could not reach the identity provider of the web identity; trying again may help"
_FAR = "Check endpoint_url (host, port), DNS, proxy and firewall; trying again may help"
_CUT = "Look at network and proxies; if it stays so, the object itself is damaged"
_UNEXPECTED = "Neither S3 nor boto3 is known to raise this; trying again may help"
_PERMISSION = ""  # depends on the request, see `_permission`

_CODES: dict[str, tuple[Meaning, str]] = {
    "PreconditionFailed": (Meaning.EXISTS, _UNSUPPORTED),
    "412": (Meaning.EXISTS, _UNSUPPORTED),
    "NoSuchKey": (Meaning.ABSENT, _ENDPOINT),
    "404": (Meaning.UNEXPLAINED, _ENDPOINT),
    "ConditionalRequestConflict": (Meaning.NOT_APPLIED, _BUSY),
    "ConcurrentModification": (Meaning.NOT_APPLIED, _BUSY),
    "OperationAborted": (Meaning.NOT_APPLIED, _BUSY),
    "BadDigest": (Meaning.NOT_APPLIED, _CUT),
    "XAmzContentSHA256Mismatch": (Meaning.NOT_APPLIED, _CUT),
    "XAmzContentChecksumMismatch": (Meaning.NOT_APPLIED, _CUT),
    "IncompleteBody": (Meaning.NOT_APPLIED, _CUT),
    "NoSuchUpload": (Meaning.UNKNOWN, _AGAIN),  # so does a second request to complete one, whose first answer was lost
    "SlowDown": (Meaning.UNKNOWN, _BUSY),
    "RequestTimeout": (Meaning.UNKNOWN, _BUSY),
    "InternalError": (Meaning.UNKNOWN, _AGAIN),
    "QuotaExceeded": (Meaning.NOT_APPLIED, _FULL),
    "XMinioAdminBucketQuotaExceeded": (Meaning.NOT_APPLIED, _FULL),
    "XMinioStorageFull": (Meaning.UNKNOWN, _FULL),
    # Of the service that gives credentials: S3 itself was not asked yet
    "Throttling": (Meaning.NOT_APPLIED, _BUSY),
    "ThrottlingException": (Meaning.NOT_APPLIED, _BUSY),
    "RequestLimitExceeded": (Meaning.NOT_APPLIED, _BUSY),
    "RequestThrottled": (Meaning.NOT_APPLIED, _BUSY),
    "IDPCommunicationError": (Meaning.NOT_APPLIED, _FAR_PROVIDER),
    "AccessDenied": (Meaning.DENIED, _PERMISSION),
    "InvalidAccessKeyId": (Meaning.DENIED, _KEYS),
    "SignatureDoesNotMatch": (Meaning.DENIED, _KEYS),
    "ExpiredToken": (Meaning.DENIED, _TOKEN),
    "ExpiredTokenException": (Meaning.DENIED, _IDENTITY),
    "InvalidIdentityToken": (Meaning.DENIED, _IDENTITY),
    "InvalidToken": (Meaning.DENIED, _TOKEN),
    "TokenRefreshRequired": (Meaning.DENIED, _TOKEN),
    "RequestTimeTooSkewed": (
        Meaning.DENIED,
        "Set the clock of this machine (or of the store): they differ by more than 15 min",
    ),
    "InvalidObjectState": (
        Meaning.DENIED,
        "It was moved to an archive: restore it from there, and exempt checkpoints from that lifecycle rule",
    ),
    "NoSuchBucket": (Meaning.MISCONFIGURED, "Create the bucket, or correct its name"),
    "PermanentRedirect": (Meaning.MISCONFIGURED, _REGION),
    "AuthorizationHeaderMalformed": (Meaning.MISCONFIGURED, _REGION),
    "IllegalLocationConstraintException": (Meaning.MISCONFIGURED, _REGION),
    "InvalidArgument": (Meaning.MISCONFIGURED, _UNSUPPORTED),
    "NotImplemented": (Meaning.UNSUPPORTED, _UNSUPPORTED),
    "MethodNotAllowed": (Meaning.UNSUPPORTED, _UNSUPPORTED),
}

_STATUS: dict[int, tuple[Meaning, str]] = {
    301: (Meaning.MISCONFIGURED, _REGION),
    401: (Meaning.DENIED, _KEYS),
    403: (Meaning.DENIED, _PERMISSION),
    405: (Meaning.UNSUPPORTED, _UNSUPPORTED),
    408: (Meaning.UNKNOWN, _BUSY),
    409: (Meaning.NOT_APPLIED, _BUSY),
    412: (Meaning.EXISTS, _UNSUPPORTED),
    429: (Meaning.UNKNOWN, _BUSY),
    501: (Meaning.UNSUPPORTED, _UNSUPPORTED),
}

_CLASSES: dict[str, tuple[Meaning, str]] = {
    "EndpointConnectionError": (Meaning.NOT_APPLIED, _FAR),
    "ConnectTimeoutError": (Meaning.NOT_APPLIED, _FAR),
    "ProxyConnectionError": (Meaning.NOT_APPLIED, _FAR),
    "SSLError": (Meaning.UNKNOWN, "Check http or https in endpoint_url, the certificate, and verify"),
    "ConnectionClosedError": (
        Meaning.UNKNOWN,
        "Use https in endpoint_url if this is an https port; otherwise try again",
    ),
    "ResponseStreamingError": (Meaning.DAMAGED, _CUT),
    "IncompleteReadError": (Meaning.DAMAGED, _CUT),
    "FlexibleChecksumError": (Meaning.DAMAGED, _CUT),
    "HTTPClientError": (Meaning.UNKNOWN, _AGAIN),
    "ConnectionError": (Meaning.UNKNOWN, _AGAIN),
    "FileNotFoundError": (Meaning.DENIED, _CREDENTIAL_FILES),  # no other file of this machine is opened for a request
    "PermissionError": (Meaning.DENIED, _CREDENTIAL_FILES),
    "OSError": (Meaning.UNKNOWN, _AGAIN),
    "NoCredentialsError": (Meaning.DENIED, _NO_CREDENTIALS),
    "PartialCredentialsError": (Meaning.DENIED, _NO_CREDENTIALS),
    "CredentialRetrievalError": (Meaning.DENIED, _NO_CREDENTIALS),
    "TokenRetrievalError": (Meaning.DENIED, _NO_CREDENTIALS),
    "ResponseParserError": (Meaning.MISCONFIGURED, _ENDPOINT),
    "ParamValidationError": (Meaning.MISCONFIGURED, "Check bucket and prefix of the root"),
    "ProfileNotFound": (Meaning.MISCONFIGURED, "Check profile_name; shared files belong to the user who runs this"),
    "ValueError": (Meaning.MISCONFIGURED, _ENDPOINT),
    "BotoCoreError": (Meaning.MISCONFIGURED, "Check endpoint_url, region_name and the shared AWS files"),
}

_STILL_EXPIRED = "refreshed credentials are still expired"  # botocore says it in a plain RuntimeError, before it sends

_ACTIONS = {
    "write": "s3:PutObject",
    "read": "s3:GetObject",
    "delete": "s3:DeleteObject",
    "copy": "s3:PutObject (and s3:GetObject on what is copied)",
    "end uploads below": "s3:AbortMultipartUpload (and s3:ListBucketMultipartUploads on the bucket)",
}


def meaning(error: Exception) -> Meaning:
    """Return the outcome of the request."""
    return _find(error)[0]


def explain(error: Exception, doing: str, root: str, key: str) -> StoreError:
    """Return the store's error, with what to do. ``doing`` is a key of ``_ACTIONS``, or list; ``root``: ``bucket/prefix``."""
    outcome, advice = _find(error)
    text = f"cannot {doing} s3://{'/'.join(filter(None, (root, key)))}: {_text_of(error)}"
    return _class(outcome)(f"{text}. {advice or _permission(error, doing, root)}")


def not_s3(observation: str, doing: str, root: str, key: str) -> StoreMisconfigured:
    """Return the error for an answer that says "done" and is not S3's. Web sites and captive portals send such answers."""
    return StoreMisconfigured(f"cannot {doing} s3://{'/'.join(filter(None, (root, key)))}: {observation}. {_ENDPOINT}")


def _class(outcome: Meaning) -> type[StoreError]:
    if outcome is Meaning.DENIED:
        return StoreDenied
    if outcome in (Meaning.NOT_APPLIED, Meaning.UNKNOWN, Meaning.DAMAGED):
        return StoreUnavailable
    return StoreMisconfigured  # "absent" and "exists" too, where nobody can have asked for it


def _find(error: Exception) -> tuple[Meaning, str]:
    """Return the meaning of an error, and advice. An unknown error becomes an error of the store, too: it must not end a thread that watches."""
    response = getattr(error, "response", None)  # of an HTTP client's error it is None
    if isinstance(response, dict):
        status = _status(response)
        code = _code(response)
        listed = _CODES.get(code) or _STATUS.get(status)
        refused = (Meaning.MISCONFIGURED, _ENDPOINT if code == str(status) else _OTHER)
        return listed or ((Meaning.UNKNOWN, _AGAIN) if status >= 500 else refused)
    if _STILL_EXPIRED in str(error):
        return Meaning.DENIED, _TOKEN
    known = (_CLASSES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CLASSES)
    return next(known, (Meaning.UNKNOWN, _UNEXPECTED))


def _code(response: dict[str, dict[str, str]]) -> str:
    return str(response.get("Error", {}).get("Code", ""))


def _status(response: dict[str, dict[str, str]]) -> int:
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _text_of(error: Exception) -> str:
    """Return the code, the status and the server's message; the client's message if no server was reached."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return f"{type(error).__name__}: {error}".rstrip(" .")
    message = str(response.get("Error", {}).get("Message") or "")[:300]
    return f"{_code(response)} ({_status(response)}): {message}".rstrip(" .:")


def _permission(error: Exception, doing: str, root: str) -> str:
    operation = getattr(error, "operation_name", "")
    if operation == "AssumeRole":
        return "Check role_arn, and that these credentials may assume it"
    return _allow(doing, root)


def _allow(doing: str, root: str) -> str:
    bucket = root.partition("/")[0]
    listing = f"s3:ListBucket on arn:aws:s3:::{bucket}"
    if doing == "list":
        return f"Allow {listing}"
    allow = f"Allow {_ACTIONS[doing]} on arn:aws:s3:::{root}/*"
    return f"{allow}, and {listing}: without it S3 says this of every absent key" if doing == "read" else allow
