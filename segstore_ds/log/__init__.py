"""The batch metadata log and the commit protocol; no feature is known by name here."""
