"""Why a repair stopped."""

from __future__ import annotations


class ActionError(Exception):
    """A step cannot be done or taken back; the message is one sentence for the user."""
