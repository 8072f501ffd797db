"""Behaviour: the metadata log, the commit protocol, table status, append, scan, verify.

Decisions are pure functions (`plan_*`, `check_*`); I/O stands at the edges (`run_*` and the
handles). Clocks, ids and waiting come in through `clock.Clock`.
"""
