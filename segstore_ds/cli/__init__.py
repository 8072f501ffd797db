"""The command line: `segstore demo`, `segstore info`, `segstore verify`.

A client of the public API. Imports no pyspark; what the demo runs in Spark is text that it prints.
"""
