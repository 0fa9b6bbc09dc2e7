"""vllm-doctor: find, prove and repair what stops vLLM on one NVIDIA card."""

__version__ = "0.1.0"
