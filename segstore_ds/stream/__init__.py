"""The front door: `create`, `open`, `exists`, `drop`, `list_streams`, `streams` and `Stream`.

A `Stream` is a handle: it remembers the newest root it has seen and follows the log from there. Its
methods check arguments and call the verbs of the other rooms.
"""

from segstore_ds.stream.catalog import drop, list_streams, streams
from segstore_ds.stream.opening import (
    create,
    create_on,
    exists,
    open,  # noqa: A004 - segstore.open(url) is the name users expect
    open_on,
)
from segstore_ds.stream.reads import client_name
from segstore_ds.stream.rescue import repair, salvage, verify
from segstore_ds.stream.stream import Stream

__all__ = [
    "Stream",
    "client_name",
    "create",
    "create_on",
    "drop",
    "exists",
    "list_streams",
    "open",
    "open_on",
    "repair",
    "salvage",
    "streams",
    "verify",
]
