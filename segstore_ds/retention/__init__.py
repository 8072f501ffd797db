"""Retention: readers, tags, truncate, restore, purge, vacuum and drop."""
