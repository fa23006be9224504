"""Who hears of polls. Apps above `fleet` register here when they are loaded, since `fleet` may not import them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controlplane.fleet.poll import PollOutcome

PollSink = Callable[[Sequence[PollOutcome]], None]
"""Called inside the shard's transaction; it must not call the network."""

_sinks: list[PollSink] = []


def register_poll_sink(sink: PollSink) -> None:
    if sink not in _sinks:
        _sinks.append(sink)


def hand_over(outcomes: Sequence[PollOutcome]) -> None:
    for sink in _sinks:
        sink(outcomes)
