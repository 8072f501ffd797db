"""What Python runs at its start in the workers of `session.delayed_workers`."""
