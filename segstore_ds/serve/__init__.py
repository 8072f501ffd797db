"""Streams over Arrow Flight, for programs in other languages: `segstore serve`."""
