"""How long ago the control plane last vouched for the snapshot in force, by a clock that only moves forward.

All times are of this machine's monotonic clock, in seconds: neither a clock that is set back nor one that differs from
the control plane's can keep a namespace open that denies when its policy is stale.
"""

from __future__ import annotations


class Lease:
    def __init__(self) -> None:
        self._vouched_at: float | None = None

    def begin(self, *, age_s: float, now: float) -> None:
        """A snapshot made `age_s` ago came into force: it was the newest when it was made."""
        self.renew(now=now - max(0.0, age_s))

    def renew(self, *, now: float) -> None:
        """The control plane said that the snapshot in force is the newest, in answer to a question asked at `now`."""
        self._vouched_at = now if self._vouched_at is None else max(self._vouched_at, now)

    def age_s(self, now: float) -> float:
        """Infinite before the first snapshot."""
        return float("inf") if self._vouched_at is None else max(0.0, now - self._vouched_at)
