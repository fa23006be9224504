"""Credit of one holder's events: do answers confirm what the index predicted? (A13)

Every answer brings (predicted, delivered) cached tokens. Within WINDOW_S, the index is not believed any more when

    overrated   ≥ STRIKES answers fell short, and Σ shortfall ≥ SHARE_OVERRATED × Σ predicted
    underrated  ≥ STRIKES_UNDERRATED answers exceeded, and Σ excess ≥ SHARE_UNDERRATED × Σ delivered

A forger who claims blocks that its worker lacks draws requests by it, and each of them is a strike: STRIKES answers
suffice, so it is off as soon as they are in. Honest workers fall short too, when a block is evicted while a request
waits; and exceed, when equal prompts run at the same time and one fills the cache for the others. Hence shares, and
the wider limits for the harmless direction.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
ANSWERS_MAX = 512
"""Answers remembered; beyond it the oldest go first."""
STRIKES = 4
"""Two unlucky evictions in a minute are common on a full cache; four with a quarter of all tokens are not."""
SHARE_OVERRATED = 0.25
STRIKES_UNDERRATED = 16
SHARE_UNDERRATED = 0.5
OFF_S, OFF_S_MAX = 300.0, 3600.0
"""Time without events after a loss of credit; doubled each time, forgotten after OFF_S_MAX of good conduct."""


class Credit:
    def __init__(self, *, slack_tokens: int) -> None:
        """`slack_tokens`: a difference below it is no strike; a block, as the last one may be computed anew."""
        self.slack_tokens = slack_tokens
        self.lost_at: float | None = None
        """When credit was last lost, on the caller's clock."""
        self._off_s = OFF_S
        self._answers: deque[tuple[float, int, int]] = deque()
        self._predicted = self._delivered = self._short = self._excess = 0
        self._strikes = self._strikes_underrated = 0

    @property
    def off_until(self) -> float | None:
        """Until when events are off, None with credit that was never lost."""
        return None if self.lost_at is None else self.lost_at + self._off_s

    def is_off(self, *, now: float) -> bool:
        return self.lost_at is not None and now < self.lost_at + self._off_s

    def judge(self, *, predicted_tokens: int, delivered_tokens: int, now: float) -> bool:
        """One answer. True when this one costs the credit."""
        if self.is_off(now=now):
            return False
        self._count(predicted_tokens, delivered_tokens, 1)
        self._answers.append((now, predicted_tokens, delivered_tokens))
        while self._answers and (self._answers[0][0] <= now - WINDOW_S or len(self._answers) > ANSWERS_MAX):
            _, predicted, delivered = self._answers.popleft()
            self._count(predicted, delivered, -1)
        if not (self._overrated or self._underrated):
            return False
        self._lose(now)
        return True

    @property
    def score(self) -> float:
        """Share of tokens in the window that were predicted as delivered; 1 without answers."""
        total = max(self._predicted, self._delivered)
        return 1.0 if total == 0 else 1.0 - min(total, self._short + self._excess) / total

    @property
    def _overrated(self) -> bool:
        return self._strikes >= STRIKES and self._short >= SHARE_OVERRATED * self._predicted

    @property
    def _underrated(self) -> bool:
        return self._strikes_underrated >= STRIKES_UNDERRATED and self._excess >= SHARE_UNDERRATED * self._delivered

    def _count(self, predicted: int, delivered: int, sign: int) -> None:
        self._predicted += sign * predicted
        self._delivered += sign * delivered
        difference = predicted - delivered
        if difference > self.slack_tokens:
            self._strikes += sign
            self._short += sign * difference
        elif -difference > self.slack_tokens:
            self._strikes_underrated += sign
            self._excess -= sign * difference

    def _lose(self, now: float) -> None:
        relapse = self.lost_at is not None and now - self.lost_at < self._off_s + OFF_S_MAX
        self._off_s = min(OFF_S_MAX, self._off_s * 2) if relapse else OFF_S
        self.lost_at = now
        self._answers.clear()
        self._predicted = self._delivered = self._short = self._excess = 0
        self._strikes = self._strikes_underrated = 0
