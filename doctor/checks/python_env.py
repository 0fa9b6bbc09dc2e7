"""Checks of the area: python_env."""
