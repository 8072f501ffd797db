"""The table status: segments, history, epochs, and other tables that may outgrow the root."""
