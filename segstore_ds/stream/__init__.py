"""The front door: `create`, `open`, `exists`, `drop`, `list_streams`, `streams` and `Stream`.

A `Stream` is a handle: it remembers the newest root it has seen and follows the log from there. Its
methods check arguments and call the verbs of the other rooms. `segstore_ds.public` names what is
offered; a connector's processes come in by `connector`, and load a part of this.

Every function raises InvalidInputError if an argument, a location or an option is not valid, and
StorageError if the filesystem failed. What it raises beside these is listed there.
"""
