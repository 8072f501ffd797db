"""What a stream shows: figures, exporters and pictures from one description of it."""
