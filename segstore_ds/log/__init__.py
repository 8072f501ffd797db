"""The batch metadata log, how it is followed, the rules between two roots, and the clock."""
