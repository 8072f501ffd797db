"""Filters: what users give, the conditions that it implies, and how both are applied to rows."""
