"""Published tables: a stream's Parquet segments as a table of other engines, without a copy."""
