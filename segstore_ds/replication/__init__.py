"""Replication: followers, how commits reach them, and promotion."""
