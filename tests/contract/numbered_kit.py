"""Events that say who wrote them."""

from typing import Any

import pyarrow as pa

import segstore_ds as segstore

SCHEMA = pa.schema([("writer", pa.int64()), ("n", pa.int64()), ("text", pa.string())])


def numbered(writer: int, start: int, count: int) -> pa.Table:
    """Return events that say who wrote them and in which order."""
    numbers = range(start, start + count)
    return pa.table(
        {"writer": [writer] * count, "n": list(numbers), "text": [f"event {n}" for n in numbers]},
        schema=SCHEMA,
    )


def reopen(place: dict[str, Any]) -> segstore.Stream:
    """Open the stream at a place."""
    return segstore.open(place["url"], storage_options=place.get("storage_options"))
