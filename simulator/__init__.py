"""A simulated vLLM worker, and a player that sends recorded traffic. README.md says what is modelled."""
