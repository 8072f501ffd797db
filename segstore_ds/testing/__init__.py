"""What tests of segstore, and of what is built on it, need: contract suites, fault injection."""
