"""Finds what is damaged of the published tables: what other engines need to read them.

Segments that a table lists are the stream's, and so is the check of them.
"""

from segstore_ds.publish import paths
from segstore_ds.publish.folder import is_ours, list_table
from segstore_ds.publish.formats import CODECS
from segstore_ds.publish.snapshot import Damaged
from segstore_ds.storage import Storage


def damaged_tables(storage: Storage) -> Damaged:
    """Yield what is damaged of a stream's published tables: the object, and what is wrong."""
    for codec in CODECS.values():
        listed = list_table(storage, codec)
        objects = {info.path: info for info in listed if paths.is_published(info.path)}
        if objects:
            yield from codec.check(storage, objects)


def advise(storage: Storage, stream_id: str, path: str) -> str:
    """Return what to do about a damaged object of a published table."""
    folder = path.partition("/")[0]
    codec = next(c for c in CODECS.values() if folder in (c.KIND, c.METADATA_FOLDER))
    publish = f"segstore publish {storage.url} --format {codec.KIND}"
    if is_ours(storage, codec, stream_id):
        return f"call: {publish} --remove, then {publish}"
    return f"delete {storage.url}/{codec.METADATA_FOLDER} by hand, then call: {publish}"
