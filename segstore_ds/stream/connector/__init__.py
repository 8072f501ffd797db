"""The only door for a connector: what `spark/` needs below the front door, and nothing else.

`Stream` serves people. A connector plans in one process, runs tasks in others and commits in a
third. So each function here does one step of that, by the options of the table, and the other names
are values that travel between the steps. Each process starts anew and imports what its step needs:
`reads` for reads, `writes` for batches, `queries` for streaming queries, and the rest for calls of
users' own processes.
"""
