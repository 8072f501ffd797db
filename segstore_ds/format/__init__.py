"""Bytes <-> values, pure: names, envelope, root, status parts, segments, schemas, statistics.

Nothing here does I/O, reads a clock or draws a random number. FORMAT.md beside this file is the
normative description; each module names the section it implements.
"""
