"""Copies: by segment objects, by events, and clones with their pins."""
