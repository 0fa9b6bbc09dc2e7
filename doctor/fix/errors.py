"""Why a repair stopped."""

from __future__ import annotations


class ActionError(Exception):
    """A step cannot be done or taken back; the message is one sentence for the user."""


class Interrupted(Exception):
    """The user or the system asked to stop; raised between steps only."""
