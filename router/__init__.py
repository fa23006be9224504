"""The data plane: an OpenAI-compatible router that sends each request to the worker holding its prefix.

It never imports Django. `contract` is what it shares with the control plane, `core` decides without I/O,
`adapters` talk to Valkey, disk and clocks, `http` moves bytes, `service` orders the steps of one request.
"""
