"""The proxy benchmark's parts: C kit, peers, and the measuring of CPU per request."""
