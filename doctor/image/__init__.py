"""The pinned image: what it is built from, how that is verified, and how it is handed on."""
