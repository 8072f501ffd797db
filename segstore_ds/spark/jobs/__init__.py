"""Compactions and copies as Spark jobs."""
