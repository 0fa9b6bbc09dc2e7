"""Checks of the area: compiler."""
