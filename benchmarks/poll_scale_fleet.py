"""`python -m benchmarks.poll_scale_fleet PORT`: any address of 127.0.0.0/8 answers as a worker's metrics page."""

from __future__ import annotations

import asyncio
import sys
import time

_TEMPLATE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.42
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {queries}
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {queries}
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {hits}
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{engine="0",model_name="m"}} 0.0
{histograms}# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
"""
_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_HISTOGRAMS = ("vllm:time_to_first_token_seconds", "vllm:request_queue_time_seconds")
_STARTED_AT = time.time()


def page() -> bytes:
    """About the size of a filtered page of vLLM 0.32."""
    age_s = time.time() - _STARTED_AT
    count = age_s * 5
    lines = []
    for name in _HISTOGRAMS:
        lines.append(f"# TYPE {name} histogram")
        for index, bound in enumerate(_BOUNDS):
            share = (index + 1) / len(_BOUNDS)
            lines.append(f'{name}_bucket{{engine="0",le="{bound}",model_name="m"}} {round(count * share)}.0')
        lines.append(f'{name}_bucket{{engine="0",le="+Inf",model_name="m"}} {round(count)}.0')
        lines.append(f'{name}_count{{engine="0",model_name="m"}} {round(count)}.0')
        lines.append(f'{name}_sum{{engine="0",model_name="m"}} {count * 0.3:.3f}')
    return _TEMPLATE.format(
        running=f"{4 + age_s % 7:.1f}", queries=f"{age_s * 9_000:.1f}", hits=f"{age_s * 5_000:.1f}",
        histograms="\n".join(lines) + "\n", started=_STARTED_AT,
    ).encode()  # fmt: skip


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            body = page()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(answer, "0.0.0.0", port, backlog=2_048)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
