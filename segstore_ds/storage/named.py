"""Objects whose names say their bytes: several writers may put the same one."""

from segstore_ds.errors import ConflictError, CorruptionError, MissingObjectError
from segstore_ds.storage.base import Storage

_TRIES = 5


def put_named(storage: Storage, path: str, data: bytes) -> None:
    """Put an object unless it is there; another writer may put it too, or delete it.

    An existing object with other bytes is replaced: a process ended while it wrote it, on a
    filesystem that shows an object before it is whole.

    Raises:
        ConflictError: Another writer deleted the object on every attempt.
    """
    for _ in range(_TRIES):
        if storage.create(path, data):
            return
        try:
            if storage.get(path, limit_bytes=len(data)) == data:
                return
        except MissingObjectError:
            continue
        except CorruptionError:
            pass  # it is longer
        storage.put(path, data)
        return
    raise ConflictError("another writer deletes the same object each time", path=path)
