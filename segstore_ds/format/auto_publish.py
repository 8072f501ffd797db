"""The property that names the tables of other engines that commits keep up to date."""

from collections.abc import Collection

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.record import build_json
from segstore_ds.format.root import Root, property_of

PROPERTY = "publish"  # On disk. Never change; add a new one.


def auto_publish_of(root: Root) -> tuple[str, ...]:
    """Return the formats of a stream's published tables; CorruptionError if it can't be read."""
    return property_of(root, PROPERTY, tuple[str, ...]) or ()


def build_auto_publish(formats: Collection[str] | None, known: Collection[str]) -> str | None:
    """Return the property's text for some of the known formats; None for none of them.

    >>> build_auto_publish(["delta"], {"delta"}), build_auto_publish(None, {"delta"})
    ('["delta"]', None)
    """
    if not formats:
        return None
    if isinstance(formats, str) or not {*formats} <= {*known}:
        raise InvalidInputError(
            "not a list of table formats", remedy=f"choose from {sorted(known)}", formats=formats
        )
    return build_json(sorted({*formats})).decode()
