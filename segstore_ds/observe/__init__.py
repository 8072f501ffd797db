"""What a stream shows: figures, exporters, pictures and plots from one description of it."""
