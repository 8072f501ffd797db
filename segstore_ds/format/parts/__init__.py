"""Status and history parts: packed columns and what is built from them."""
