"""The property that names a stream's primary and its followers (FORMAT.md 4.7)."""

from dataclasses import dataclass

from segstore_ds.errors import CorruptionError
from segstore_ds.format.fields import build_json, parse_json
from segstore_ds.format.root import Root

PROPERTY = "replication"  # On disk. Never change.


@dataclass(frozen=True, slots=True)
class Replication:
    """Which folder takes commits, and which folders follow it."""

    primary: str
    followers: tuple[str, ...]

    def to_text(self) -> str:
        """Return the text of the property.

        >>> Replication("file:///a", ("file:///b",)).to_text()
        '{"followers":["file:///b"],"primary":"file:///a"}'
        """
        value = {"primary": self.primary, "followers": list(self.followers)}
        return build_json(value).decode()


def replication_of(root: Root) -> Replication | None:
    """Return the replication of a stream as of a root; None where there is none."""
    text = root.properties.get(PROPERTY)
    if text is None:
        return None
    value = parse_json(text, where=PROPERTY)
    match value:
        case {"primary": str(primary), "followers": [*urls]} if all(
            isinstance(url, str) for url in urls
        ):
            return Replication(primary, tuple(urls))
    raise CorruptionError("the replication property can't be parsed", property=text)


def follows(theirs: Root, url: str, *, of: str) -> bool:
    """Tell whether a root of the folder `url` says that it follows the folder `of`, or with it."""
    known = replication_of(theirs)
    named = () if known is None else (known.primary, *known.followers)
    return of in named and url in named[1:]


def followers_of(root: Root) -> tuple[str, ...]:
    """Return the locations of the followers that a root names."""
    known = replication_of(root)
    return known.followers if known else ()
