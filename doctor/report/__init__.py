"""Presenting what was judged. Reports never compute and never touch the host's facts."""
