"""The folders of a published table: what lies there, whose it is, what may go, and its removal.

They are in the stream's own folder, where somebody else's table may lie by mistake. A table is the
stream's if one of its objects holds the stream's id; nothing of any other is ever deleted.

A file's age says nothing of its readers: one that was listed for a month may have been dropped a
minute ago. So the round that first sees a file unused notes it in an object of the table, and the
round that sees the note a grace later, by the store's times, deletes the file.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from segstore_ds.errors import FormatError, InvalidInputError, MissingObjectError
from segstore_ds.format.policies import GRACE_S
from segstore_ds.format.record import parse_json
from segstore_ds.publish import paths
from segstore_ds.publish.snapshot import Codec, Table
from segstore_ds.storage import ObjectInfo, Storage

_ATTEMPTS = 10
_FIRST = ("_last_checkpoint", "version-hint.text", ".checkpoint.parquet")
_ASKED = 20  # objects that are no commits
MAKING_US = 3_600_000_000  # within an hour, what a publisher wrote is named or never will be


def list_table(storage: Storage, codec: Codec) -> list[ObjectInfo]:
    """List a table's metadata and its own files."""
    return [*storage.list(codec.METADATA_FOLDER), *storage.list(codec.KIND)]


def refuse_foreign(storage: Storage, stream_id: str, codec: Codec) -> None:
    """Raise InvalidInputError if metadata that is not the stream's lies where a table's would."""
    if is_foreign(storage, codec, stream_id):
        raise InvalidInputError(
            "the stream's folder holds a table that is not the stream's",
            remedy="move that table to a folder of its own; if it is the stream's and was damaged, "
            "delete its metadata by hand",
            url=f"{storage.url}/{codec.METADATA_FOLDER}",
        )


def remove_table(storage: Storage, stream_id: str, codec: Codec, *, keep: str = "") -> int:
    """Delete a table's metadata and its own files but one; return how many objects there were."""
    gone: set[str] = set()
    for _ in range(_ATTEMPTS):  # a publisher that found the table in place may have added to it
        if not gone:
            refuse_foreign(storage, stream_id, codec)
        found = (info.path for info in list_table(storage, codec))
        ours = [path for path in found if paths.is_published(path) and path != keep]
        if not ours:
            break
        for path in sorted(sorted(ours, reverse=True), key=_turn):
            storage.delete(path)
        gone.update(ours)
    return len(gone)


def _turn(path: str) -> int:
    """Return when an object goes: commits after what only they prove to be the stream's.

    Without commits there is no table, so its files go after them, the sign of it first. The newest
    commit goes first: who is about to publish the next one looks for it, and a removal that is
    killed leaves older ones.
    """
    if path.endswith(_FIRST):
        return 0
    if path.endswith("_unused.json"):
        return 2
    return 1 if path.endswith(".json") else 3


def is_foreign(storage: Storage, codec: Codec, stream_id: str) -> bool:
    """Tell whether metadata is not known as the stream's; the newest commits are asked first."""
    held = sorted((info.path for info in storage.list(codec.METADATA_FOLDER)), reverse=True)
    made = [path for path in held if codec.MAKES_TABLE.fullmatch(path)]
    asked = [path for path in made if path.endswith(".json")]
    rest = [path for path in held if path not in asked and paths.is_published(path)]
    asked += rest[:_ASKED]  # the id lies in the headers of lists, the ends of checkpoints
    return bool(made) and not any(_holds(storage, path, stream_id) for path in asked)


def _holds(storage: Storage, path: str, stream_id: str) -> bool:
    with suppress(FormatError):
        return stream_id.encode() in storage.get(path)
    return False


def delete_unused(
    storage: Storage,
    codec: Codec,
    table: Table,
    own: Collection[str],
    *,
    now_us: int = 0,
    grace_s: float = GRACE_S,
    log_grace_s: float,
) -> list[ObjectInfo]:
    """Delete what was superseded or unused longer than the grace ago; `own` are keys in use.

    What leads to the newest state alone stays for `log_grace_s`: a stream that is published each
    minute would otherwise list ten thousand commits each time. Older metadata of Iceberg, which
    has no values, stays for the usual grace. Returns what is not used, but is so new that it may
    still be.
    """
    objects = sorted(list_table(storage, codec), key=lambda info: info.path)
    now_us = max((now_us, *(info.modified_us for info in objects)))
    grace_us = int(grace_s * 1e6)
    kept_us = int((GRACE_S if codec.TRAVELS else log_grace_s) * 1e6)
    ended = {path: us + kept_us for path, us in codec.superseded(objects, table).items()}
    committed = codec.commit_path(table.version)
    # What came later may be of a version that is being made.
    made_us = next((info.modified_us for info in objects if info.path == committed), now_us)
    made_us = max(made_us, now_us - MAKING_US)
    old = read_marks(storage, codec)
    unused = _unused(storage, codec, table, objects, own)
    since = {info: old.get(info.path, now_us) for info in unused if info.modified_us < made_us}
    left = {info: us for info, us in since.items() if us > now_us - grace_us}
    marks = {info.path: us for info, us in left.items()}
    path = paths.build_marks_path(codec.KIND)
    if marks != old or all(info.path != path for info in objects):
        storage.put(path, json.dumps(marks, separators=(",", ":")).encode())
    superseded = [path for path, due_us in ended.items() if due_us <= now_us]
    for path in (*superseded, *(info.path for info in since if info not in left)):
        storage.delete(path)
    return [info for info in unused if info not in since]


def _unused(
    storage: Storage,
    codec: Codec,
    table: Table,
    objects: Iterable[ObjectInfo],
    own: Collection[str],
) -> list[ObjectInfo]:
    keys = {info.path: paths.published_key(info.path) for info in objects}
    unlisted = {path for path, key in keys.items() if key != path and key not in own}
    used = codec.parts(storage, table, files=bool(unlisted))
    return [
        info
        for info in objects
        if (info.path in unlisted or paths.parse_manifest_path(info.path) is not None)
        and keys[info.path] not in used
    ]


def mark_table(storage: Storage, codec: Codec, commit: str) -> None:
    """Leave a sign of a table after its first commit: without metadata it is damaged then."""
    storage.create(paths.build_marks_path(codec.KIND), b"{}")
    try:
        storage.info(commit)
    except MissingObjectError:
        storage.delete(paths.build_marks_path(codec.KIND))


def read_marks(storage: Storage, codec: Codec) -> Mapping[str, int]:
    """Return since when each path has been unused."""
    path = paths.build_marks_path(codec.KIND)
    try:
        found = parse_json(storage.get(path), where=storage.describe(path))
    except MissingObjectError:
        return {}
    return found if isinstance(found, dict) else {}
