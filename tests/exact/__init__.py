"""Exact fingerprints: block hashes, cuts, known prompts, templates and parity, against vLLM's own answers."""
