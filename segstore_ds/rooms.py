"""The package that takes part in commits; the core knows it only by these two names.

It takes part in commits of streams whose root has the property. `SEAM` in the module makes a
`log.seams.Seam`. The log imports the module at the first such root, so no commit is made without
it.
"""

SEAM_PROPERTY, SEAM_MODULE = "replication", "segstore_ds.replication.replicas"
