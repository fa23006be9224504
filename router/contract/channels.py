"""Names in Valkey/Redis shared by both planes. All are prefixed, so that the database can be shared."""

SNAPSHOT_KEY = "tidemark:snapshot:current"
"""String: the encoded SignedSnapshot."""

SNAPSHOT_CHANNEL = "tidemark:snapshot:push"
"""Pub/sub: a message (the version as text) says that SNAPSHOT_KEY changed. A hint only."""

TELEMETRY_STREAM = "tidemark:telemetry"
"""Stream of `telemetry.Shipment`s, field `m`. Trimmed to about TELEMETRY_STREAM_MAXLEN entries by the writers."""

TELEMETRY_STREAM_MAXLEN = 20_000
"""An hour and more of one-second shipments of five sources, at about 1–5 KB each."""

TELEMETRY_GROUP = "ingest"
"""Consumer group of the ingester."""

WORKER_LIVE_HASH = "tidemark:live:workers"
"""Hash: worker id → live.WorkerLive as JSON, written by the pollers."""

KV_LIVE_HASH = "tidemark:live:kv"
"""Hash: worker id → live.KvLive as JSON, written by the KV-event subscriber."""

ROUTERS_HASH = "tidemark:routers"
"""Hash: router id → RouterHello as JSON, written by each router every second."""

PEER_LOAD_HASH = "tidemark:load"
"""Hash: router id → peers.RouterLoad as JSON, written by each router four times a second."""

DASHBOARD_GROUP = "dashboard"
"""Channels group to which the ingester announces fresh data."""
