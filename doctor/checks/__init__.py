"""Checks judge facts: pure functions of a Snapshot, one for each cause, named by its catalogue id."""

from doctor.checks.registry import Check, Judgement, check, judge, registered

__all__ = ["Check", "Judgement", "check", "judge", "registered"]
