"""Whether two storages are one place, or one lies within the other.

A location is only a name. Links, mounts and access points give one folder several, and then all
that is promised of two places holds of one. Names prove an overlap, never its absence: that takes
an object put into one of them and looked for from the other. It is looked for under every ending of
its folder's name; what no name tells is a folder within the other that is mounted as another name.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum

from segstore_ds.errors import InvalidInputError, MissingObjectError, StorageError
from segstore_ds.storage.base import PROBE, Storage
from segstore_ds.storage.locations import resolve_location

_LONGEST = 1000  # what is longer no object store takes for a name; of folders, links are followed


class Overlap(Enum):
    """How a place lies to another one, where it does not lie beside it."""

    SAME = "is"
    INSIDE = "lies within"
    AROUND = "lies around"


def compare_names(place: Storage, other: Storage) -> Overlap | None:
    """Return how a place lies to another one, as far as names and links say; sends no request.

    Args:
        place: The one that is asked about.
        other: The one that it is compared with.

    Returns:
        The overlap; None where the names show none, which proves nothing.

    Raises:
        InvalidInputError: A storage's URL is no location.
    """
    first, second = _real_parts(place.url), _real_parts(other.url)
    if first == second:
        return Overlap.SAME
    if first[: len(second)] == second:
        return Overlap.INSIDE
    return Overlap.AROUND if second[: len(first)] == first else None


def find_overlap(place: Storage, other: Storage) -> Overlap | None:
    """Return how a place lies to another one; None is proven by a look at the stores themselves.

    Puts a small object into each of the two and deletes it; vacuum and drop delete one that a
    crash leaves.

    Args:
        place: The one that is asked about.
        other: The one that it is compared with.

    Returns:
        The overlap; None where the two share nothing.

    Raises:
        InvalidInputError: A storage's URL is no location.
        StorageError: A storage failed, so nothing is known.
    """
    named = compare_names(place, other)
    if named is not None:
        return named
    depth = _find_probe(place, other)
    if depth is not None:
        return Overlap.INSIDE if depth else Overlap.SAME
    return None if _find_probe(other, place) is None else Overlap.AROUND


def refuse_overlap(place: Storage, other: Storage, overlap: Overlap | None, kind: str) -> None:
    """Refuse a place that is not apart from a stream's.

    Args:
        place: The one that is refused.
        other: One of the stream's.
        overlap: How they lie to each other.
        kind: What was to lie there.

    Raises:
        InvalidInputError: They overlap.
    """
    if overlap is None:
        return
    raise InvalidInputError(
        f"the place of a {kind} {overlap.value} the stream's own folder",
        remedy="links and mounts count; give a folder of its own, elsewhere",
        url=place.url,
        folder=other.url,
    )


def _find_probe(place: Storage, seen_from: Storage) -> int | None:
    """Return how many folders below another root an object of this one is found; None if not."""
    name = f"{PROBE}{secrets.token_hex(16)}"
    try:
        place.put(name, b"probe")
        for depth, path in enumerate(_endings(place.url, name)):
            if len(seen_from.url) + len(path) > _LONGEST:
                break
            # A name that is no path within a root is asked for under a longer one, or not at all.
            with suppress(MissingObjectError, InvalidInputError):
                seen_from.info(path)
                return depth
    finally:
        with suppress(StorageError):
            place.delete(name)
    return None


def _endings(url: str, name: str) -> Iterator[str]:
    """Yield what an object may be called from a root that holds its folder at some depth."""
    path = name
    yield path
    for part in reversed(resolve_location(url).path.strip("/").split("/")):
        path = f"{part}/{path}"
        yield path


def _real_parts(url: str) -> list[str]:
    location = resolve_location(url)
    path = os.path.realpath(location.path) if location.scheme == "file" else location.path
    parts = [part for part in path.split("/") if part]
    # Of a container, accounts differ by the host alone.
    host = location.url.partition("://")[2].partition("/")[0] if location.scheme == "abfs" else ""
    return [location.scheme, host, *parts]
