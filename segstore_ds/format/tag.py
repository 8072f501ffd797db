"""Tags: named cuts, as the root and its blob of tags keep them (FORMAT.md 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format.fields import Fields, build_json, parse_object

TAGS_LIMIT = 100_000
SHOWN_TAGS = 50  # in an error that names the known ones


@dataclass(frozen=True, slots=True)
class Tag:
    """A named cut: the offset, and the version and commit time that gave it its name."""

    offset: int
    version: int
    time_us: int


def tag_value(tag: Tag) -> list[int]:
    """Return a tag as it stands in JSON.

    >>> tag_value(Tag(17, 3, 1000))
    [17, 3, 1000]
    """
    return [tag.offset, tag.version, tag.time_us]


def parse_tags(tags: Mapping[str, Any], *, where: str) -> dict[str, Tag]:
    """Return the tags that a root holds, by name.

    Raises:
        CorruptionError: One is no tag.
    """
    return {name: parse_tag(value, where=f"{where}, tag {name!r}") for name, value in tags.items()}


def encode_tags(tags: Mapping[str, Tag]) -> bytes:
    """Return the body of a blob of tags."""
    return build_json({name: tag_value(tag) for name, tag in tags.items()})


def decode_tags(body: bytes, *, where: str) -> dict[str, Tag]:
    """Return the tags that a blob holds, by name.

    Raises:
        CorruptionError: It holds something else.
    """
    return parse_tags(parse_object(body, what="tags", where=where), where=where)


def parse_tag(value: Any, *, where: str) -> Tag:
    """Return the tag that JSON holds.

    Raises:
        CorruptionError: It is none.
    """
    columns = ("offset", "version", "time_us")
    if not isinstance(value, list) or len(value) != len(columns):
        raise CorruptionError("not a tag", where=where)
    fields = Fields(dict(zip(columns, value, strict=True)), where=where)
    return Tag(*(fields.integer(name) for name in columns))
