"""Observability: the figures of a stream, their export as metrics, and pictures."""
