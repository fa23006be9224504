"""Offered load: the GPU seconds a request needs where nothing is ever evicted.

    demand = prefill of the tokens that no earlier request of the workload had in its prefix
           + output × (its own KV reads and sampling + the step's base shared by REFERENCE_BATCH sequences)
    load   = requests a second × mean demand ÷ workers                                       (open loop)
           = sessions ÷ the fewest that would keep the workers busy or fill their KV caches   (closed loop)

At load 1 a pool with an infinite shared cache would just keep up. A finite cache needs more, so an open-loop load of
0.9 may be beyond what any policy can serve. In a closed loop memory counts too: agents' contexts that do not fit
together are computed again at every turn, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.fleet.hardware import GpuProfile
from simulator.fleet.names import BlockName
from simulator.fleet.workload import BLOCK_TOKENS

REFERENCE_BATCH = 32
"""Sequences that share a step's base: what these workers run at a load of about a half."""


def known_blocks(chain: Sequence[BlockName], limit: int, seen: set[BlockName]) -> int:
    """Leading blocks, at most `limit`, of the chain that were seen; then all of the chain is."""
    count = 0
    for name in chain[:limit]:
        if name not in seen:
            break
        count += 1
    seen.update(chain)
    return count


def demand_s(profile: GpuProfile, *, prompt_tokens: int, output_tokens: int, known: int) -> float:
    """GPU seconds of a request of which `known` blocks need no prefill."""
    cached = known * BLOCK_TOKENS
    step_s = profile.decode_sequence_s + prompt_tokens * profile.decode_context_token_s
    step_s += profile.decode_base_s / REFERENCE_BATCH
    return profile.prefill_s(prompt_tokens - cached, context_tokens=cached) + output_tokens * step_s


def unloaded_s(profile: GpuProfile, *, prompt_tokens: int, output_tokens: int, known: int) -> float:
    """Time from arrival to the end of the answer beside REFERENCE_BATCH ÷ 2 others' decode steps."""
    cached = known * BLOCK_TOKENS
    step_s = profile.decode_base_s + REFERENCE_BATCH / 2 * (
        profile.decode_sequence_s + prompt_tokens * profile.decode_context_token_s
    )
    return profile.prefill_alone_s(prompt_tokens - cached, context_tokens=cached) + output_tokens * step_s
