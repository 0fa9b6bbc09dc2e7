"""Running a vLLM server: its environment, command, life cycle and log; asking it; reading its counters."""
