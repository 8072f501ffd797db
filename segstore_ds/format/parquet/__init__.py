"""Parquet segments: one plain Parquet file each."""
