"""Redaction: a plan, a rewrite of segments, commits, and a report of what is left."""
