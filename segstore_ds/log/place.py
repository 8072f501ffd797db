"""Where a stream may begin: in a missing or empty folder that is not inside another stream.

Everything that makes a first root (a create, a copy, a salvage, ...) calls `may_begin` before it
puts anything. So our objects never mix with foreign files, and dropping a stream deletes nothing
else. Our own leftovers are allowed; they are recognized by names that only `format/names.py`
builds. Segments are not allowed, since they may be all that is left of a stream, unless its log
says that it was dropped.
"""

from contextlib import suppress

from segstore_ds.errors import (
    LOG_IS_GONE,
    CorruptionError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    SegstoreError,
    StorageError,
)
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.storage import Storage, find_inner

_LOOKED_AT = 999  # names; with the folder's own, every store lists this many in one request
_TOLD = 5  # most names in an error
_ASKED = 20  # most folders to look into, one request each
_FOLDERS = frozenset(f"{folder}/" for folder in names.FOLDERS)
_SIDE_FOLDERS = frozenset(f"{folder}/" for folder in (*names.TABLE_FOLDERS, names.ASIDE_FOLDER))


def may_begin(files: MetadataLog[Root], *, resumed: str | None = None) -> int | None:
    """Return the version that a stream may begin with in a folder; None when there already is one.

    Sends a bounded number of requests: one listing of one key shows that a folder is empty, and one
    request each shows that the folders above it hold no stream. Folders above that the caller may
    not list are skipped. With `resumed`, segments whose paths begin with it are allowed, because an
    earlier attempt may have left them.
    """
    storage, first = files.storage, 0
    if storage.peek("", 1):
        found = first_version(files)
        if found is None:
            return None
        first = found
        # After a drop, segments are allowed: they are left from writers that did not commit.
        refusal = _find_refusal(storage, "" if first else resumed)
        if refusal is not None and first_version(files) is None:
            return None  # another caller created the stream meanwhile
        if refusal is not None:
            raise refusal
    _refuse_inside(files)
    storage.ensure_exclusive()
    return first


def first_version(files: MetadataLog[Root]) -> int | None:
    """Return the version that a new stream begins with; None if there already is a stream.

    The last hour of a dropped stream's log stays, and its last commit for longer. A new stream
    begins with the next version. A newest commit that can't be read counts as a stream.
    """
    newest = files.newest_listed()
    if newest is None:
        return 0
    try:
        root = files.get(newest)
    except FormatError:
        return None
    # None: the file was purged or deleted after the listing.
    return newest + 1 if root is not None and root.dropped else None


def seen_before(first: int) -> int:
    """Return the version in the names of the objects that a stream's first root refers to.

    It is the version of the drop before, if there was one. So a drop that is still deleting
    recognizes the objects of the next stream in the folder.
    """
    return max(first - 1, 0)


def no_stream(storage: Storage) -> NotFoundError:
    """Return the error for a folder without a stream, which names what the folder holds."""
    try:
        found = storage.peek("", _LOOKED_AT) or ()
        for folder in (names.SEGMENTS_FOLDER, names.READERS_FOLDER):
            if f"{folder}/" in found and _holds_own(storage, folder):
                fact = f"no stream here, but {folder} of one whose log is gone"
                return NotFoundError(fact, remedy=LOG_IS_GONE, url=storage.url)
        foreign = sorted(name for name in found if not _is_own(storage, name))
        if streams := [url for name in foreign[:_ASKED] if (url := _stream_in(storage, name))]:
            remedy = "open one of these; segstore.list_streams(url) finds all"
            fact = "no stream here, but in folders below"
            return NotFoundError(fact, remedy=remedy, url=storage.url, streams=streams[:_TOLD])
        if not foreign and f"{names.LOG_FOLDER}/" in found:  # any program may have such a folder
            inner = storage.peek(names.LOG_FOLDER, _ASKED) or ()
            paths = [f"{names.LOG_FOLDER}/{name}" for name in inner if not name.startswith(".")]
            foreign = [path for path in paths if not names.is_object(path)]
    except InvalidInputError as error:  # it is a file
        foreign = [str(error.fields.get("file"))]
    except StorageError:
        foreign = []
    if not foreign:
        remedy = "check the location; segstore.create(url, schema) creates a stream"
        return NotFoundError("no stream here", remedy=remedy, url=storage.url)
    fact, holds = "no stream here, but other data", foreign[:_TOLD]
    return NotFoundError(fact, remedy="check the location", url=storage.url, holds=holds)


def _holds_own(storage: Storage, outer: str) -> bool:
    """Tell whether a folder has segments of a stream, unless copies staged them, or readers."""
    for token in (storage.peek(outer, _LOOKED_AT) or ())[:_ASKED]:
        folder = f"{outer}/{token.rstrip('/')}"
        inner = () if folder.startswith(names.COPIED) else storage.peek(folder, 1) or ()
        if any(names.is_object(f"{folder}/{name}") for name in inner):
            return True
    return False


def _stream_in(storage: Storage, name: str) -> str | None:
    """Return the location of a stream in a folder of `storage`; None without a log there."""
    folder = name.removesuffix("/")
    with suppress(InvalidInputError, StorageError):  # a name may be no valid path
        if folder != name and _holds_log(storage, f"{folder}/"):
            return find_inner(storage.url, folder)
    return None


def _find_refusal(storage: Storage, resumed: str | None) -> SegstoreError | None:
    found = sorted(storage.peek("", _LOOKED_AT) or ())
    foreign = [name for name in found if not _is_own(storage, name)]
    for info in () if foreign else storage.list(""):
        if not names.is_object(info.path):
            foreign = [info.path]
            break
        segment = info.path.startswith(f"{names.SEGMENTS_FOLDER}/")
        if segment and (resumed is None or not info.path.startswith(resumed)):
            # A new stream there would hide the events of the old one.
            return CorruptionError(
                "folder holds segments of a stream but no log",
                remedy=f"{LOG_IS_GONE}; for another stream use another location",
                url=storage.url,
                segment=info.path,
            )
    if not foreign:
        return None
    return InvalidInputError(
        "a new stream needs a missing or empty folder",
        remedy="give it a folder of its own",
        url=storage.url,
        holds=foreign[:_TOLD],
    )


def _refuse_inside(files: MetadataLog[Root]) -> None:
    storage = files.storage
    outer = storage.outer()
    while outer is not None:
        try:
            inside = _holds_log(outer) and first_version(files.at(outer)) is None
        except StorageError as error:
            if not error.denied:
                raise
            # A policy may forbid to list the folder above, but allow to read in it.
            inside = _holds_hint(outer)
        if inside:
            raise InvalidInputError(
                "a stream can't be inside another stream's folder",
                remedy="choose a folder outside that stream",
                url=storage.url,
                stream=outer.url,
            )
        outer = outer.outer()


def _holds_hint(storage: Storage) -> bool:
    try:
        return storage.exists(names.HINT_PATH)
    except StorageError as error:
        if not error.denied:
            raise
        return False


def _holds_log(storage: Storage, folder: str = "") -> bool:
    listed = storage.peek(f"{folder}{names.LOG_FOLDER}", _LOOKED_AT) or ()
    return any(names.parse_log_name(name) is not None for name in listed)


def _is_own(storage: Storage, name: str) -> bool:
    """Tell whether a name at the top of a folder may be a leftover of a dropped stream.

    On a disk, and on stores that mark folders, empty folders of tables and of repairs stay.
    """
    if name in _SIDE_FOLDERS:
        return not storage.peek(name[:-1], 1)
    return name in _FOLDERS or names.is_temporary(name)
