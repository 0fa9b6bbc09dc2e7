"""Repair that can be taken back: plan, journal, actions, undo."""
