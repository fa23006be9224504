"""The test suite; `python -m tests` runs all of it, with the services that it needs."""
