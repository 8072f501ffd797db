"""Storage options: chooses those of a location, and keeps their values out of texts.

Options are flat, or keyed by URL prefix so that one call can use several accounts. A value
``env:NAME`` is read from the environment of the process that opens the storage, so a pickled plan
does not contain the secret. Every text that leaves the storage layer passes a `Mask` first.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from segstore_ds.errors import InvalidInputError
from segstore_ds.storage.locations import Location, resolve_location

# Options whose values explain an error and are not secret.
_HARMLESS = frozenset(
    {"account_name", "addressing_style", "default_location", "endpoint_url", "project", "region"}
    | {"region_name", "signature_version", "user_project"}
)
_SHORTEST = 4  # characters from which on a secret is also masked inside words
_CLOUDS = ("AWS_", "AZURE_", "FSSPEC_", "GCSFS_", "GOOGLE_")  # variables with credentials


def resolve_storage_options(
    options: Mapping[str, Any] | None, location: Location
) -> dict[str, Any]:
    """Choose the options of a location and read their `env:NAME` values.

    Options are flat, or keyed by URL prefix: the longest prefix that covers the location by whole
    path segments wins. The result is flat, and empty if no prefix covers the location.
    """
    chosen = _choose(options or {}, location)
    return {name: _read_value(value, name) for name, value in chosen.items()}


def read_variables(options: Any) -> tuple[str | None, ...]:
    """Return the current values of the environment variables that options name, in order.

    >>> read_variables({"key": "env:NO_SUCH_VARIABLE", "anon": False})
    (None,)
    """
    if isinstance(options, Mapping):
        return tuple(value for inner in options.values() for value in read_variables(inner))
    named = isinstance(options, str) and options.startswith("env:")
    return (os.environ.get(options.removeprefix("env:")),) if named else ()


def digest_credentials(facts: Any) -> str | None:
    """Return a digest of resolved options and of the credentials in the environment.

    None if an option is an object, which can't be compared.
    """
    ambient = {name: os.environ[name] for name in os.environ if name.startswith(_CLOUDS)}
    user = getattr(os, "geteuid", int)()
    try:
        text = json.dumps([facts, ambient, user], sort_keys=True)
    except (TypeError, ValueError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _choose(options: Mapping[str, Any], location: Location) -> Mapping[str, Any]:
    if not isinstance(options, Mapping):
        raise InvalidInputError(
            "storage options are not a mapping",
            remedy="pass a dict (or a JSON object)",
            type=type(options).__name__,
        )
    for name in options:
        if not isinstance(name, str):
            raise InvalidInputError(
                "name of a storage option is not a string",
                remedy="name options as fsspec's filesystem does",
                type=type(name).__name__,
            )
    starts = ("/", "file:", "~")
    prefixes = [name for name in options if "://" in name or name.startswith(starts)]
    if not prefixes:
        return options
    if len(prefixes) != len(options):
        raise InvalidInputError(
            "storage options mix URL prefixes and plain names",
            remedy="put the plain ones under a prefix such as s3://",
            names=sorted(set(options) - set(prefixes)),
        )
    covering = {_canonical_prefix(name): name for name in prefixes}
    matching = [prefix for prefix in covering if _covers(prefix, location.url)]
    if not matching:
        return {}
    name = covering[max(matching, key=len)]
    chosen = options[name]
    if not isinstance(chosen, Mapping):
        raise InvalidInputError(
            "storage options under a URL prefix are not a mapping",
            remedy="pass a dict per prefix",
            prefix=name,
            type=type(chosen).__name__,
        )
    return chosen


def _canonical_prefix(prefix: str) -> str:
    scheme, found, rest = prefix.partition("://")
    if found and not rest:
        if scheme == "file":
            return "file://"
        return resolve_location(f"{scheme}://bucket").url.removesuffix("bucket")
    return resolve_location(prefix).url


def _covers(prefix: str, url: str) -> bool:
    return url == prefix or url.startswith(prefix if prefix.endswith("://") else prefix + "/")


def _read_value(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _read_value(inner, f"{name}.{key}") for key, inner in value.items()}
    if not isinstance(value, str) or not value.startswith("env:"):
        return value
    variable = value.removeprefix("env:")
    found = os.environ.get(variable) if variable else None
    if found is None:
        raise InvalidInputError(
            "environment variable of a storage option is not set",
            remedy="set it in every process that opens the stream, or pass the value itself",
            option=name,
            variable=variable,
        )
    return found


class Mask:
    """Removes the values of storage options from texts and chained causes.

    Every text in the resolved options is a secret unless its name is known to be harmless. So are
    its URL-quoted forms and the parts of a connection string.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        secrets: set[str] = set()
        for text in _secret_texts(options):
            secrets.update({text, quote(text, safe=""), quote(text), quote_plus(text)})
            secrets.update({unquote(text), repr(text)[1:-1]})
        secrets.discard("")
        # Longest first, so that a shorter secret does not leave the rest of a longer one visible.
        patterns = [_pattern(secret) for secret in sorted(secrets, key=len, reverse=True)]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def apply(self, text: str) -> str:
        """Replace every secret in a text with `***`."""
        return self._pattern.sub("***", text) if self._pattern else text

    def cause(self, cause: BaseException) -> BaseException:
        """Return an exception that is safe to chain.

        Tracebacks print a cause with its whole chain. So if the chain contains a secret, the result
        is another exception with a masked text; otherwise it is the same one.
        """
        shows = any(
            self.apply(text) != text
            for linked in chain(cause)
            for text in (str(linked), repr(linked))
        )
        return OSError(self.describe(cause)) if shows else cause

    def describe(self, cause: BaseException) -> str:
        """Describe an exception in one line, shortened and without secrets."""
        text = " ".join(self.apply(str(cause)).split())
        return f"{type(cause).__name__}: {text[:500]}" if text else type(cause).__name__


def chain(cause: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then its causes and contexts, each once."""
    pending: list[BaseException | None] = [cause]
    seen: set[int] = set()
    while pending:
        linked = pending.pop()
        if linked is not None and id(linked) not in seen:
            seen.add(id(linked))
            yield linked
            pending += [linked.__cause__, linked.__context__]


def _pattern(secret: str) -> str:
    # A very short value could match inside words, so it is matched only as a whole word.
    escaped = re.escape(secret)
    return escaped if len(secret) >= _SHORTEST else rf"(?<!\w){escaped}(?!\w)"


def _secret_texts(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secret_texts(inner, str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _secret_texts(inner, name)
    elif isinstance(value, bytes):
        yield value.decode("latin-1")
    elif isinstance(value, str) and (name not in _HARMLESS or "@" in value):
        yield value
        for part in re.split(r"[;&?\n]", value):
            if len(part) >= 2 * _SHORTEST:
                yield part
                key, equals, rest = part.partition("=")
                if equals and key.lower() not in ("accountname", "defaultendpointsprotocol"):
                    yield rest
