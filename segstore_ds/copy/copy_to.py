"""Copies of a stream to another location, in any of the three modes."""

import os
from collections.abc import Mapping
from typing import Any

from segstore_ds.commit.context import StreamContext
from segstore_ds.copy.clone import run_clone
from segstore_ds.copy.events import run_copy_events
from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.copy.segments import run_copy
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.root import Root
from segstore_ds.read.cuts import CutLike, parse_cut, resolve_range
from segstore_ds.storage import open_storage


def run_copy_to(
    context: StreamContext,
    url: str | os.PathLike[str],
    request: CopyRequest,
    cuts: tuple[CutLike, CutLike],
    storage_options: Mapping[str, Any] | None,
) -> Copied:
    """Make the copy that a request asks for, or finish it; `Stream.copy_to` describes it."""
    if request.mode == "clone":
        return _clone(context, url, request, storage_options)
    if request.mode not in ("segments", "events"):
        raise InvalidInputError(
            "unknown copy mode", remedy="use segments, events or clone", mode=request.mode
        )
    target = open_storage(url, storage_options)
    start, end = map(parse_cut, cuts)

    def bind(root: Root) -> tuple[int, int]:
        return resolve_range(context, root, start, end, remedy="start the copy at 'head'")

    if request.mode == "events":
        return run_copy_events(context, target, request, bind)
    context.log.refresh()
    return run_copy(context, target, request, bind)


def _clone(
    context: StreamContext,
    url: str | os.PathLike[str],
    request: CopyRequest,
    storage_options: Mapping[str, Any] | None,
) -> Copied:
    whole = (request.start, request.end) == ("head", "tail")
    if not whole or storage_options is not None:
        raise InvalidInputError(
            "a clone takes no range and no storage options",
            remedy='truncate the clone, or copy with mode="segments"',
            start=request.start,
            end=request.end,
        )
    return run_clone(context, context.storage.sibling(open_storage(url).url), request)
