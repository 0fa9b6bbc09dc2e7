"""The smoke test: start a real server, ask it, read its counters, judge, and leave nothing behind."""
