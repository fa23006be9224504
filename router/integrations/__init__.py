"""Seam for embedding `router.core` in other serving systems (S2.5); each integration is a module of its own here."""
