"""The table status: segments, history, epochs and what outgrows the root."""
