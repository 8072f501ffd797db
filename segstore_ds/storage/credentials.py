"""Storage options: which of them belong to a location, and how their values stay out of sight.

Options are flat, or keyed by URL prefix so that one call can use several accounts. A value
``env:NAME`` is read from the environment of the process that opens the storage, so it can travel in
a plan without being a secret. Whatever text leaves the storage layer passes a `Redactor` first.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from segstore_ds.errors import InvalidInputError
from segstore_ds.storage.locations import Location, resolve_location

# Names whose values help to understand an error and open no door.
_HARMLESS = frozenset(
    {"account_name", "addressing_style", "default_location", "endpoint_url", "project", "region"}
    | {"region_name", "signature_version", "user_project"}
)
_SHORTEST = 4


def resolve_storage_options(
    options: Mapping[str, Any] | None, location: Location
) -> dict[str, Any]:
    """Choose the options of a location and read their `env:NAME` values.

    Args:
        options: Flat options of fsspec's filesystem, or options keyed by URL prefix; the longest
            prefix that covers the location wins, whole path segments counted.
        location: The place to be opened.

    Returns:
        Flat options with real values; empty when no prefix covers the location.

    Raises:
        InvalidInputError: Options are mixed or of a wrong type, or a variable is not set.
    """
    chosen = _choose(options or {}, location)
    return {name: _read_value(value, name) for name, value in chosen.items()}


def _choose(options: Mapping[str, Any], location: Location) -> Mapping[str, Any]:
    if not isinstance(options, Mapping):
        raise InvalidInputError(
            "storage options are no mapping",
            remedy="pass a dict (or a JSON object)",
            type=type(options).__name__,
        )
    for name in options:
        if not isinstance(name, str):
            raise InvalidInputError(
                "name of a storage option is no text",
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
            "storage options under a URL prefix are no mapping",
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


class Redactor:
    """Takes the values of storage options out of texts and of chained causes.

    Args:
        options: Resolved options; every text in them is a secret unless its name is known to be
            harmless, and so are its URL-quoted forms and the parts of a connection string.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        secrets: set[str] = set()
        for text in _secret_texts(options):
            secrets.update({text, quote(text, safe=""), quote(text), quote_plus(text)})
            secrets.update({unquote(text), repr(text)[1:-1]})
        secrets.discard("")
        # The longest first, so that no secret survives as the rest of a shorter one.
        patterns = [_pattern(secret) for secret in sorted(secrets, key=len, reverse=True)]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def redact(self, text: str) -> str:
        """Replace every secret in a text.

        Args:
            text: Text from a filesystem.

        Returns:
            The text with `***` in place of secrets.

        Raises:
            Nothing.
        """
        return self._pattern.sub("***", text) if self._pattern else text

    def cause(self, cause: BaseException) -> BaseException:
        """Make a cause fit to be chained: tracebacks print it with all that it chains itself.

        Args:
            cause: What the filesystem raised.

        Returns:
            The same exception, or a stand-in with a redacted text when a secret shows anywhere in
            its chain.

        Raises:
            Nothing.
        """
        shows = any(
            self.redact(text) != text
            for linked in chain(cause)
            for text in (str(linked), repr(linked))
        )
        return OSError(self.describe(cause)) if shows else cause

    def describe(self, cause: BaseException) -> str:
        """Say in one line, without secrets, what a filesystem raised.

        Args:
            cause: What the filesystem raised.

        Returns:
            Its class and its text, shortened.

        Raises:
            Nothing.
        """
        text = " ".join(self.redact(str(cause)).split())
        return f"{type(cause).__name__}: {text[:500]}" if text else type(cause).__name__


def chain(cause: BaseException) -> Iterator[BaseException]:
    """Walk an exception and all that it was raised from or while handling.

    Args:
        cause: The outermost exception.

    Yields:
        It, then its causes and contexts, each once.

    Raises:
        Nothing.
    """
    pending: list[BaseException | None] = [cause]
    seen: set[int] = set()
    while pending:
        linked = pending.pop()
        if linked is not None and id(linked) not in seen:
            seen.add(id(linked))
            yield linked
            pending += [linked.__cause__, linked.__context__]


def _pattern(secret: str) -> str:
    # A very short value would tear words apart; it is found as a word of its own.
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
