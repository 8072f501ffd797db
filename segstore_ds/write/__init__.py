"""Writing: a request, the job that is planned from it, its tasks, and the commit of an append."""
