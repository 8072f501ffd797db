"""Retention: readers, tags, truncate, restore, upkeep and drop."""
