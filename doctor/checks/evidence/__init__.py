"""Checks that judge what a pasted text says: events (and the facts beside them) -> findings.

They complement the checks of facts: both may speak about one cause, the registry merges what they say.
"""
