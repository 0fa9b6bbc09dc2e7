"""Checks of the area: storage."""
