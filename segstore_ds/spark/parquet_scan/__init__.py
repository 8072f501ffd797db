"""The hybrid scan: Parquet segments through Spark's own reader."""
