"""The streaming source and sink."""
