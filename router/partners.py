"""What the service asks of the parts beside it; who implements them is put together in `runtime`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from router.call import Call
from router.contract.ids import PoolId
from router.core.exact.chains import ExactPrefix
from router.core.model import ExactPrompt, Grant
from router.http.prompt_fields import PromptFields


class Recorder(Protocol):
    def record(self, call: Call) -> None:
        """Count a finished call. It must not be kept: it holds what the client sent."""

    def record_refusal(self, kind: str) -> None:
        """Count what the edge refused before it was a request. `kind` is one of telemetry's ERROR_KINDS."""


class ExactPrompts(Protocol):
    """Prompts as the workers of their pools hash them, in the pools where that is known."""

    @property
    def pools(self) -> Mapping[PoolId, object]:
        """The pools in exact mode at this moment: of others nothing is asked."""

    def read(
        self, grant: Grant, fields: PromptFields, *, kind: str
    ) -> ExactPrefix | Callable[[], Awaitable[ExactPrefix | None]] | None:
        """The prompt, or a call to await for it; None where it cannot be had. `kind`: name of the endpoint."""

    def prompt(self, grant: Grant, prefix: ExactPrefix) -> ExactPrompt | None:
        """What each worker holds of it at this moment; None when none can tell."""

    def answered(self, call: Call) -> None:
        """A worker's answer is complete. The call must not be kept."""
