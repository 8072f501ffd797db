"""Status objects: segments as columns, parts as Arrow frames, and the kinds of objects."""
