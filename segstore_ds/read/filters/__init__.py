"""Filters: what users give, the conditions that follow, and how both are applied to rows."""
