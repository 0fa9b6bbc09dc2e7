"""Checks of the area: serving."""
