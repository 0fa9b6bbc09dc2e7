"""Checks of the area: network."""
