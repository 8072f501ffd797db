"""Encodes and decodes names, envelopes, roots, status parts, segments, schemas and statistics.

Pure: nothing here does I/O, reads a clock or draws a random number. FORMAT.md beside this file is
normative; modules name the section that they implement.
"""
