"""Which room takes part in commits; the core knows it only by these two names.

It takes part in the commits of a stream whose root has its property. The factory `SEAM` of its
module makes a `log.seams.Seam`. The log loads the module at the first such root, so no commit is
made without it, whatever was imported before.
"""

SEAM_PROPERTY, SEAM_MODULE = "replication", "segstore_ds.replication.replicas"
