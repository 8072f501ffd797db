"""The folders of a published table: what lies there, and its removal.

They are in the stream's own folder, where somebody else's table may lie by mistake. A table is the
stream's if one of its commits holds the stream's id; nothing of any other is ever deleted.
"""

import re
from collections.abc import Iterable
from contextlib import suppress

from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.storage import ObjectInfo, Storage

_ATTEMPTS = 10
# By the folder of a table's own files: that of its metadata, and the names that make a table.
_METADATA = {
    names.DELTA_FOLDER: (names.DELTA_LOG_FOLDER, re.compile(r"_delta_log/[0-9].*")),
    names.ICEBERG_FOLDER: (names.ICEBERG_METADATA_FOLDER, re.compile(r".*\.metadata\.json.*")),
}
_FIRST = ("_last_checkpoint", "version-hint.text", ".checkpoint.parquet")


def list_table(storage: Storage, folder: str) -> list[ObjectInfo]:
    """List a table's metadata and its own files, which lie in `folder`."""
    return [*storage.list(_METADATA[folder][0]), *storage.list(folder)]


def refuse_foreign(storage: Storage, stream_id: str, folder: str) -> None:
    """Raise InvalidInputError if metadata that is not the stream's lies where a table's would."""
    if _is_foreign(storage, folder, stream_id, storage.list(_METADATA[folder][0])):
        raise _foreign(storage, folder)


def remove_tables(storage: Storage, stream_id: str) -> int:
    """Delete a stream's tables; return how many objects there were. Those of others stay."""
    count = 0
    for folder in _METADATA:
        with suppress(InvalidInputError):
            count += remove_table(storage, stream_id, folder)
    return count


def remove_table(storage: Storage, stream_id: str, folder: str) -> int:
    """Delete a table's metadata and its own files; return how many objects there were.

    Raises:
        InvalidInputError: It is not the stream's table; nothing was deleted.
    """
    gone: set[str] = set()
    for _ in range(_ATTEMPTS):  # a publisher that found the table in place may have added to it
        objects = list_table(storage, folder)
        if not gone and _is_foreign(storage, folder, stream_id, objects):
            raise _foreign(storage, folder)
        ours = [info.path for info in objects if names.is_published(info.path)]
        if not ours:
            break
        for path in sorted(ours, key=lambda path: (_turn(path), path)):
            storage.delete(path)
        gone.update(ours)
    return len(gone)


def _turn(path: str) -> int:
    """Return when an object goes: commits after what only they prove to be the stream's.

    Without commits there is no table, so its files go after them.
    """
    if path.endswith(_FIRST):
        return 0
    return 1 if path.endswith(".json") and not path.endswith("_unused.json") else 2


def _is_foreign(
    storage: Storage, folder: str, stream_id: str, objects: Iterable[ObjectInfo]
) -> bool:
    """Tell whether metadata is not that of the stream's table, which may be damaged."""
    pattern = _METADATA[folder][1]
    held = sorted((info.path for info in objects if pattern.fullmatch(info.path)), reverse=True)
    commits = (path for path in held if path.endswith(".json"))  # the newest first
    return bool(held) and not any(_holds(storage, path, stream_id) for path in commits)


def _holds(storage: Storage, path: str, stream_id: str) -> bool:
    with suppress(FormatError):
        return stream_id.encode() in storage.get(path)
    return False


def _foreign(storage: Storage, folder: str) -> InvalidInputError:
    return InvalidInputError(
        "the stream's folder holds a table that is not the stream's",
        remedy="move that table to a folder of its own",
        url=f"{storage.url}/{_METADATA[folder][0]}",
    )
