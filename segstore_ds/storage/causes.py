"""What a filesystem failure means: whether a repeated call may succeed, and the remedy.

A cause in these tables lasts until someone acts. Any other one may be temporary: a timeout, a
server error, a request to slow down. Whether the failed call has changed anything is not decided
here; see `StorageError.untouched`.
"""

import errno
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from segstore_ds.storage.credentials import chain

_ACCESS = "check the permissions of the folder and of the account that runs this process"
_REFUSED = "the store refuses these credentials: check them, and their permissions on this bucket"
_NO_ANSWER = "no connection to the store: check the endpoint and the network, then repeat"
_NO_KEYS = (
    "give them in storage_options ({0}), or where the store's own tools look for them: "
    "environment, profile, role of the machine"
)
_NOT_ABLE = "this filesystem can't do that: choose another location"
_HEADERS = (
    "the store does not support a header of the request; of S3's checksums: storage_options "
    "config_kwargs={'request_checksum_calculation': 'when_required'} leaves them out"
)
NO_BUCKET = "the bucket or container does not exist: create it first, or check the location"
_TOO_LONG = "use a shorter location"
_QUOTA = "the quota is used up: free space or raise the quota, then repeat"

_BY_ERRNO: Mapping[int, str] = {
    errno.ENOSPC: "the disk is full: free space, then repeat",
    errno.EDQUOT: _QUOTA,
    errno.EFBIG: "the file would exceed the largest size allowed here (ulimit -f, or the disk's)",
    errno.EROFS: "the disk is read-only: mount it for writing, or use another location",
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOTDIR: "a file is where a folder should be: use another location",
    errno.EISDIR: "a folder is where a file should be: use another location",
    errno.ENAMETOOLONG: _TOO_LONG,
    errno.ELOOP: "symbolic links of the location form a loop: use another location",
}
# Error codes of S3 and Azure, and exception classes of the clients.
_BY_NAME: Mapping[str, str] = {
    "NotImplemented": _HEADERS,
    "NoSuchBucket": NO_BUCKET,
    "ContainerNotFound": NO_BUCKET,
    "StorageErrorCode.CONTAINER_NOT_FOUND": NO_BUCKET,
    "InvalidBucketName": "this is not a valid bucket name: check the location",
    "KeyTooLongError": _TOO_LONG,
    "XMinioAdminBucketQuotaExceeded": _QUOTA,
    "PermanentRedirect": "the bucket is in another region: name it in storage_options",
    "AuthorizationHeaderMalformed": "the bucket is in another region: name it in storage_options",
    "AccessDenied": _REFUSED,
    "AllAccessDisabled": _REFUSED,
    "ExpiredToken": _REFUSED,
    "InvalidAccessKeyId": _REFUSED,
    "InvalidToken": _REFUSED,
    "SignatureDoesNotMatch": _REFUSED,
    "RequestTimeTooSkewed": "the clock of this machine is wrong: correct it",
    "NoCredentialsError": _NO_KEYS.format("key, secret; or anon=True for a public bucket"),
    "PartialCredentialsError": _NO_KEYS.format("give key and secret together"),
    "DefaultCredentialsError": _NO_KEYS.format("token; or token='anon' for a public bucket"),
    "ClientAuthenticationError": _REFUSED,
    "ProfileNotFound": "name a profile of the AWS configuration, or give key and secret",
    "NoRegionError": "name the region in storage_options: client_kwargs={'region_name': ...}",
}
_FORBIDDEN, _LACKING = 403, 501
_BY_STATUS: Mapping[int, str] = {401: _REFUSED, _FORBIDDEN: _REFUSED, _LACKING: _HEADERS}
# Exception classes of the clients that did not reach the store.
_UNREACHED = frozenset(
    {"ClientConnectorError", "ClientConnectorDNSError", "ClientConnectorSSLError"}
    | {"ConnectionError"}  # of a `FirstContact`, and of requests
    | {"ConnectTimeoutError", "EndpointConnectionError", "ServiceRequestError", "SSLError"}
)
# Google Cloud Storage also answers 403 when it asks a client to slow down.
_SLOW_DOWN = ("ratelimitexceeded", "rate limit")


class Remedy(NamedTuple):
    """What to do about a failure, "" if unknown, and whether it lasts until then."""

    text: str
    lasting: bool


def find_remedy(cause: BaseException) -> Remedy:
    """Return the remedy for a failure.

    >>> find_remedy(OSError(errno.EROFS, "read-only")).text
    'the disk is read-only: mount it for writing, or use another location'
    >>> find_remedy(TimeoutError())
    Remedy(text='', lasting=False)
    """
    linked = list(chain(cause))
    if _is_slowed_down(linked):
        return Remedy("", lasting=False)
    if (text := _lasting(cause, linked)) is not None:
        return Remedy(text, lasting=True)
    unreached = any(type(error).__name__ in _UNREACHED for error in linked)
    return Remedy(_NO_ANSWER if unreached else "", lasting=False)


def is_denied(cause: BaseException) -> bool:
    """Tell whether a call failed because this caller has no permission.

    >>> is_denied(PermissionError()), is_denied(FileNotFoundError())
    (True, False)
    """
    linked = list(chain(cause))
    if _is_slowed_down(linked):
        return False
    return any(isinstance(e, PermissionError) or _status(e) == _FORBIDDEN for e in linked)


def is_unsupported(cause: BaseException) -> bool:
    """Tell whether a store refused a request because it lacks what a header asks for."""
    return any(_status(e) == _LACKING or "NotImplemented" in _names(e) for e in chain(cause))


def _is_slowed_down(linked: list[BaseException]) -> bool:
    return any(word in str(error).lower() for error in linked for word in _SLOW_DOWN)


def _lasting(cause: BaseException, linked: list[BaseException]) -> str | None:
    if any("x-amz-checksum" in str(e) or "x-amz-sdk-checksum" in str(e) for e in linked):
        return _HEADERS
    # Names come first: clients also set an errno on refusals, which says less.
    for error in linked:
        for name in _names(error):
            if name in _BY_NAME:
                return _BY_NAME[name]
    for error in linked:
        if (status := _status(error)) in _BY_STATUS:
            return _BY_STATUS[status]
    if isinstance(cause, NotImplementedError):
        return _NOT_ABLE
    if isinstance(cause, OSError) and (found := _BY_ERRNO.get(cause.errno or 0)):
        return found
    return _ACCESS if isinstance(cause, PermissionError) else None


def _names(cause: BaseException) -> Iterator[str]:
    response: Any = getattr(cause, "response", None)
    if isinstance(response, Mapping):
        yield str(response.get("Error", {}).get("Code", ""))
    if code := getattr(cause, "error_code", None):
        yield str(code)
    yield type(cause).__name__


def _status(cause: BaseException) -> int:
    if type(cause) is OSError and str(cause).startswith("Forbidden: "):  # how gcsfs raises it
        return _FORBIDDEN
    response: Any = getattr(cause, "response", None)
    if isinstance(response, Mapping):
        given: Any = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        given = getattr(cause, "status_code", None) or getattr(cause, "code", None)
    return int(given) if str(given).isdecimal() else 0
