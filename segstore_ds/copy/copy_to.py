"""Copies of a stream to another location, in any of the three modes."""

from collections.abc import Mapping
from typing import Any

from segstore_ds.copy.clone import run_clone
from segstore_ds.copy.destination import Copied, CopyRequest
from segstore_ds.copy.events import run_copy_events
from segstore_ds.copy.segments import run_copy
from segstore_ds.errors import InvalidInputError
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.storage import Storage, UrlLike, open_storage


def run_copy_to(
    context: StreamContext,
    url: UrlLike,
    request: CopyRequest,
    storage_options: Mapping[str, Any] | None,
    *,
    progress: Progress = unheard,
) -> Copied:
    """Make the copy that a request asks for, or finish it; `Stream.copy_to` describes it."""
    if request.mode == "clone":
        return run_clone(context, _clone_storage(context, url, request, storage_options), request)
    if request.version is not None:
        raise InvalidInputError(
            "an older version can only be cloned",
            remedy='use mode="clone", or restore the version in a clone and copy that',
            version=request.version,
        )
    if request.mode not in ("segments", "events"):
        raise InvalidInputError(
            "unknown copy mode", remedy="use segments, events or clone", mode=request.mode
        )
    target = open_storage(url, storage_options)
    if request.mode == "events":
        return run_copy_events(context, target, request, progress=progress)
    context.log.refresh()
    return run_copy(context, target, request, progress=progress)


def _clone_storage(
    context: StreamContext,
    url: UrlLike,
    request: CopyRequest,
    storage_options: Mapping[str, Any] | None,
) -> Storage:
    if request.start != "head" or storage_options is not None:
        raise InvalidInputError(
            "a clone takes no start and no storage options",
            remedy='truncate the clone, or copy with mode="segments"',
            start=request.start,
        )
    return context.storage.sibling(open_storage(url).url)
