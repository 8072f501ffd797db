"""Arrow segments: frames, their index, and the segment object."""
