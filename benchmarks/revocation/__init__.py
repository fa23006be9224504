"""How fast, and how surely, what is revoked is refused: a real control plane, Valkey, routers and racing clients."""
