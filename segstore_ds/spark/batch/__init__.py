"""Batch reads and writes."""
