"""Evidence: text that somebody pasted (logs, tracebacks, reports) -> events and facts. Nothing here judges."""

from doctor.evidence.load import Reading, read_evidence

__all__ = ["Reading", "read_evidence"]
