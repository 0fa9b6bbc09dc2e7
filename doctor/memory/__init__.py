"""The memory model of vLLM: start check, KV pool, weights, ceilings. Pure arithmetic, no GPU."""
