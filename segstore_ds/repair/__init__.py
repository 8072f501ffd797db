"""Repair: verify, repair and salvage."""
