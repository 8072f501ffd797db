"""Test tools for segstore and for code built on it: contract suites, fault injection, a model."""
