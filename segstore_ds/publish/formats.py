"""The formats of published tables, by name."""

from collections.abc import Mapping

from segstore_ds.errors import InvalidInputError
from segstore_ds.publish import delta, iceberg
from segstore_ds.publish.snapshot import Codec

CODECS: Mapping[str, Codec] = {delta.KIND: delta, iceberg.KIND: iceberg}


def codec_of(name: str) -> Codec:
    """Return the codec of a format; InvalidInputError if there is none."""
    if name not in CODECS:
        raise InvalidInputError(
            "not a table format", remedy=f"choose from {sorted(CODECS)}", format=name
        )
    return CODECS[name]
