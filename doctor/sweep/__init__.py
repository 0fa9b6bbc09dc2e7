"""The measurement plan of one card: many starts of a real server, one row each, resumable."""
