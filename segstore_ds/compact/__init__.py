"""Compaction: the plan, the rewrite, the commit, and a plan as rows for Spark."""
