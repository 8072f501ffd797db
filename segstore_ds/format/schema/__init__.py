"""Schemas: stored text, normal form, widening, and conversion of batches."""
