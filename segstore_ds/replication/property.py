"""The property that names a stream's primary and its followers (FORMAT.md 4.7)."""

from dataclasses import dataclass

from segstore_ds.format.record import build_json, to_json
from segstore_ds.format.root import Root, property_of

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
        return build_json(to_json(self)).decode()


def replication_of(root: Root) -> Replication | None:
    """Return the replication of a stream as of a root; None where there is none."""
    return property_of(root, PROPERTY, Replication)


def follows(theirs: Root, url: str, *, of: str) -> bool:
    """Tell whether a root of the folder `url` says that it follows the folder `of`, or with it."""
    known = replication_of(theirs)
    named = () if known is None else (known.primary, *known.followers)
    return of in named and url in named[1:]


def followers_of(root: Root) -> tuple[str, ...]:
    """Return the locations of the followers that a root names."""
    known = replication_of(root) if PROPERTY in root.properties else None
    return known.followers if known else ()
