"""Tags: named cuts, as the root and its blob of tags store them (FORMAT.md 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segstore_ds.format.fields import build_json, parse_cells, parse_object

TAGS_LIMIT = 100_000
SHOWN_TAGS = 50  # the most that an error lists


@dataclass(frozen=True, slots=True)
class Tag:
    """A named cut: its offset, and the version and time of the commit that named it."""

    offset: int
    version: int
    time_us: int


def tag_value(tag: Tag) -> list[int]:
    """Return the JSON row of a tag.

    >>> tag_value(Tag(17, 3, 1000))
    [17, 3, 1000]
    """
    return [tag.offset, tag.version, tag.time_us]


def parse_tags(tags: Mapping[str, Any], *, where: str) -> dict[str, Tag]:
    """Parse the tags of a root, by name."""
    return {name: parse_tag(value, where=f"{where}, tag {name!r}") for name, value in tags.items()}


def encode_tags(tags: Mapping[str, Tag]) -> bytes:
    """Return the body of a blob of tags."""
    return build_json({name: tag_value(tag) for name, tag in tags.items()})


def decode_tags(body: bytes, *, where: str) -> dict[str, Tag]:
    """Decode the body of a blob of tags, by name."""
    return parse_tags(parse_object(body, what="tags", where=where), where=where)


def parse_tag(value: Any, *, where: str) -> Tag:
    """Parse the JSON row of a tag."""
    row = parse_cells(value, ("offset", "version", "time_us"), where=where)
    return Tag(row.integer("offset"), row.integer("version"), row.time_us("time_us"))
