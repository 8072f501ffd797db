"""The front door: `create`, `open`, `exists`, `drop`, `list_streams`, `streams` and `Stream`.

A `Stream` is a handle: it remembers the newest root it has seen and follows the log from there. Its
methods check arguments and call the verbs of the other rooms. `segstore_ds.public` has the public
names; the processes of a connector import `connector`, and so only a part of this room.

Every function raises InvalidInputError if an argument, a location or an option is not valid, and
StorageError if the filesystem failed. What it raises beside these is listed there.
"""
