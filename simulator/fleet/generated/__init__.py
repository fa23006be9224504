"""Workloads made from stated parameters instead of a recorded trace."""
