"""Checks of the area: driver."""
