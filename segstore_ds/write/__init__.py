"""Writing: a request, the job planned from it, its tasks, and the append that commits them."""
