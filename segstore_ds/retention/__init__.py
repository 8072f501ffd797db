"""Retention: named readers, tags, retain, truncate, restore, upkeep and drop."""
