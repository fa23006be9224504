"""Fleet simulation: recorded traffic over modelled workers, routed by `router.core` or by a peer's documented rule."""
