"""The command line: `segstore demo`, `segstore info`, `segstore verify`.

This package is a client of the public API. It imports no pyspark; what the demo runs in Spark is
text that the demo prints.
"""
