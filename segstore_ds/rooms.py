"""The rooms that take part in commits: the core calls them by its seams and knows no names.

A room takes part in the commits of a stream whose root has the room's property. The module that is
listed under it has a factory `SEAM` of a `log.seams.Seam`. The log loads it at the first such root,
so none is left out, whatever was imported before.
"""

# In this order, before the put and again before the acknowledgement.
COMMIT_SEAMS = {"replication": "segstore_ds.replication.replicas"}
