"""Encode and decode names, envelopes, roots, status parts, segments, schemas and statistics.

Pure: nothing here does I/O, reads a clock or draws a random number. FORMAT.md beside this file is
normative; each module names the section that it implements.
"""
