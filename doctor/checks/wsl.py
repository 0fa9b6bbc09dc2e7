"""Checks of the area: wsl."""
