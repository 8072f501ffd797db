"""Published tables: a stream's Parquet-backed history as a table of other engines, not copied."""
