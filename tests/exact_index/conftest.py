"""Simulated workers for the tests beside this file."""

from tests.simulator.conftest import start_worker

__all__ = ["start_worker"]
