"""The room that takes part in commits: the core calls it by the seams and knows no names.

It takes part in the commits of a stream whose root has its property. Its module has a factory
`SEAM` of a `log.seams.Seam`. The log loads it at the first such root, so it is not left out,
whatever was imported before.
"""

SEAM_PROPERTY, SEAM_MODULE = "replication", "segstore_ds.replication.replicas"
