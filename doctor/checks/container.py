"""Checks of the area: container."""
