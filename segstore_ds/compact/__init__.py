"""Compaction: its plan, also as rows for Spark, the rewrite and the commit."""
