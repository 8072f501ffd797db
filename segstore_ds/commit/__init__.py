"""The commit protocol: how a change gets into the log and to the followers."""
