"""What the control plane and the data plane agree on: ids, secrets, snapshots, telemetry, live state.

Only the standard library and msgspec are imported here. Every shape that crosses a process boundary is a
frozen `msgspec.Struct`; a field may be added with a default, never renamed or given another meaning.
"""
