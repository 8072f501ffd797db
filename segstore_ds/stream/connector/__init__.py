"""The interface for connectors: what `spark/` needs beside the public API, and nothing else.

A connector plans in one process, runs tasks in others and commits in a third. So each function here
does one of these steps, by the options of the table, and the other names are values that are passed
between the steps. Each process imports only what its step needs: `reads` for reads, `writes` for
batches, `queries` for streaming queries, and the rest for calls of users' own processes.
"""
