"""The batch metadata log and the commit protocol: nothing else, and no feature by name."""
