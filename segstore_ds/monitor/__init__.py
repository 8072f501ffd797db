"""Monitor: the figures of a stream as values, and what exports them."""
