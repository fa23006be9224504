"""The router's links to the control plane: snapshots and live state in, telemetry and hello out.

Nothing here stands on a request's path: with every link down the router serves on.
"""
