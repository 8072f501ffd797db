"""The folders of a published table: whether a table is the stream's, its clean-up, its removal.

They are in the stream's own folder, where somebody may have put another table by mistake. A table
is the stream's if one of its objects holds the stream's id. Objects of other tables are never
deleted.

A file's age does not show when its last reader began: a file of last month may have been dropped a
minute ago. So a round that first sees a file unused notes the time in `_unused.json`. A round that
runs later than a grace after it, by the store's times, deletes the file.
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
_FIRST = ("_last_checkpoint", "_newest.text", "version-hint.text", ".checkpoint.parquet")
_READ = 20  # objects other than commits that are read to find the stream's id
MAKING_US = 3_600_000_000  # a publisher commits within an hour of writing a file, or never


def list_table(storage: Storage, codec: Codec) -> list[ObjectInfo]:
    """List a table's metadata and its own files."""
    return [*storage.list(codec.METADATA_FOLDER), *storage.list(codec.KIND)]


def refuse_foreign(storage: Storage, stream_id: str, codec: Codec) -> None:
    """Raise InvalidInputError if another table's metadata lies where the stream's would."""
    if is_foreign(storage, codec, stream_id):
        raise InvalidInputError(
            "the stream's folder holds a table that is not the stream's",
            remedy="move that table to a folder of its own; if it is the stream's and was damaged, "
            "delete its metadata by hand",
            url=f"{storage.url}/{codec.METADATA_FOLDER}",
        )


def remove_table(storage: Storage, stream_id: str, codec: Codec, *, keep: str = "") -> int:
    """Delete a table's metadata and own files, except `keep`; return how many there were."""
    gone: set[str] = set()
    for _ in range(_ATTEMPTS):  # another publisher may add objects meanwhile
        if not gone:
            refuse_foreign(storage, stream_id, codec)
        listed = (info.path for info in list_table(storage, codec))
        ours = [path for path in listed if paths.is_published(path) and path != keep]
        if not ours:
            break
        for path in sorted(sorted(ours, reverse=True), key=_removal_rank):
            storage.delete(path)
        gone.update(ours)
    return len(gone)


def _removal_rank(path: str) -> int:
    """Return when to delete an object: hints and checkpoints, commits, `_unused.json`, the rest.

    Commits prove that the hints and checkpoints are the stream's, so they go later. The caller
    deletes the newest commit first: a concurrent publisher checks that one, and a killed removal
    leaves the older ones as proof.
    """
    if path.endswith(_FIRST):
        return 0
    if path.endswith("_unused.json"):
        return 2
    return 1 if path.endswith(".json") else 3


def is_foreign(storage: Storage, codec: Codec, stream_id: str) -> bool:
    """Tell whether a table's metadata lies there without the stream's id; reads newest first."""
    held = sorted((info.path for info in storage.list(codec.METADATA_FOLDER)), reverse=True)
    made = [path for path in held if codec.MAKES_TABLE.fullmatch(path)]
    read = [path for path in made if path.endswith(".json")]
    rest = [path for path in held if path not in read and paths.is_published(path)]
    read += rest[:_READ]  # the id is also in the headers of lists and the ends of checkpoints
    return bool(made) and not any(_holds(storage, path, stream_id) for path in read)


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
    """Delete metadata superseded and files unused for longer than a grace; `own` are keys in use.

    Superseded metadata of Delta goes after `log_grace_s`: a stream that is published every minute
    would otherwise list ten thousand commits each time. That of Iceberg, which holds no values,
    stays for the usual grace. Returns the unused objects that are so new that a publisher may still
    commit them.
    """
    objects = sorted(list_table(storage, codec), key=lambda info: info.path)
    now_us = max((now_us, *(info.modified_us for info in objects)))
    grace_us = int(grace_s * 1e6)
    kept_us = int((GRACE_S if codec.TRAVELS else log_grace_s) * 1e6)
    ended = {path: us + kept_us for path, us in codec.superseded(objects, table).items()}
    committed = codec.commit_path(table.version)
    # Newer objects may belong to a commit that another publisher prepares.
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
    """Create `_unused.json` after the first commit: with it, missing metadata is damage."""
    storage.create(paths.build_marks_path(codec.KIND), b"{}")
    try:
        storage.info(commit)
    except MissingObjectError:
        storage.delete(paths.build_marks_path(codec.KIND))


def read_marks(storage: Storage, codec: Codec) -> Mapping[str, int]:
    """Return since when (us) each unused path has been unused."""
    path = paths.build_marks_path(codec.KIND)
    try:
        marks = parse_json(storage.get(path), where=storage.describe(path))
    except MissingObjectError:
        return {}
    return marks if isinstance(marks, dict) else {}
