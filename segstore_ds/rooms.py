"""The rooms that take part in every commit: the core calls them by its seams and knows no names.

A module that is listed here has a factory `SEAM` of a `log.seams.Seam`. The log loads it when the
first log is opened, so none is left out, whatever was imported before.
"""

# In this order, before the put and again before the acknowledgement.
COMMIT_SEAMS = ("segstore_ds.replication.replicas",)
