"""Cost of exact fingerprints: known and continued prompts, never-seen text, block hashes, rendering.

    python -m benchmarks.exact [--json] [--model FOLDER] [--rounds N]

Without a folder the lab's tokenizer is trained first (a few seconds). Text is Python source; `known` is the same
prompt again, `continued` one that goes on where an earlier one ended, behind it 60 bytes that nobody sent before.
Pure Python, one thread; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import runpy
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from router.adapters.tokenizer import Caller, ExactTokenizer
from router.adapters.tokenizer_files import encode, load_model_files
from router.contract.ids import TenantId
from router.core.exact.block_hashes import BlockHasher
from router.core.exact.chains import Scope

BLOCK_SIZE = 16
PROMPT_TOKENS = (16_000, 128_000)
TURNS = (1, 60)
UNSEEN_BYTES = 65_536
SECRET = bytes(range(32))
CALLER = Caller(TenantId("bench"), "s" * 43)
LATENCY_PROBE_S = 0.001


@dataclass(frozen=True)
class Row:
    """Microseconds at the median for one prompt; rendering is told apart because it is the template's cost."""

    tokens: int
    turns: int
    bytes: int
    render_us: float
    known_us: float
    continued_read_us: float
    """Finding what is known and what is not."""
    continued_us: float
    """And tokenising and hashing the rest."""
    rotated_ms: float
    """Under a salt not seen before: every block is hashed, nothing is tokenised."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", type=Path, help="folder with tokenizer.json; its template must take plain chats")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.model or _lab_model(Path(made))
        result = asyncio.run(measure(folder, arguments.rounds))
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for row in result["rows"]:
        print(
            f"{row['tokens']:7} tokens {row['turns']:3} turns: known {row['known_us']:6.1f} µs,"
            f" continued {row['continued_us']:6.1f} (reading {row['continued_read_us']:.1f}),"
            f" rotated salt {row['rotated_ms']:.2f} ms, render {row['render_us']:.1f} µs"
        )
    for name, value in result.items():
        if name != "rows":
            print(f"{name:32} {value:.2f}")


async def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Any: rows and figures for JSON."""
    exact = _exact(folder)
    source = _source()
    rows = [await _row(exact, source, tokens, turns, rounds) for tokens in PROMPT_TOKENS for turns in TURNS]
    unseen = source[-UNSEEN_BYTES:]
    figures = {
        "sha256_us_per_block": _hash_us("sha256"),
        "sha256_cbor_us_per_block": _hash_us("sha256_cbor"),
        "unseen_64k_encode_ms": median_us(lambda: encode(exact._files.tokenizer, unseen), 7) / 1000,
        "unseen_64k_fingerprint_ms": await _unseen_ms(folder, unseen),
        "unseen_64k_loop_held_ms_max": await _loop_held_ms(folder, unseen),
        "bytes_per_known_block": await _bytes_per_block(folder, source),
    }
    exact.close()
    return {"rows": [asdict(row) for row in rows], **figures}


async def _row(exact: ExactTokenizer, source: str, tokens: int, turns: int, rounds: int) -> Row:
    fields = _conversation(source, tokens, turns, exact)
    prefix = await exact.fingerprint(CALLER, fields, chat=True)
    text = exact.prompt(fields, chat=True)[0]
    assert isinstance(text, str)
    data, scope, chains = text.encode(), Scope(CALLER.tenant, CALLER.salt), exact._chains
    reads, totals, rotated = [], [], []
    for number in range(rounds):
        grown = {"messages": [*fields["messages"], *_turns(f"ok {number}", f"and then, {number}?")]}
        rest = exact.prompt(grown, chat=True)[0]
        assert isinstance(rest, str)
        more = rest.encode()
        started = time.perf_counter_ns()
        reading = chains.read(scope, more)
        reads.append(time.perf_counter_ns() - started)
        for piece in reading.unknown:
            piece.ids = exact._encode(more, piece)
        chains.finish(reading)
        totals.append(time.perf_counter_ns() - started)
    for number in range(5):
        started = time.perf_counter_ns()
        chains.finish(chains.read(Scope(CALLER.tenant, f"{tokens}-{turns}-{number}"), data))
        rotated.append(time.perf_counter_ns() - started)
    return Row(
        tokens=prefix.tokens,
        turns=turns,
        bytes=len(data),
        render_us=median_us(lambda: exact.prompt(fields, chat=True), rounds),
        known_us=median_us(lambda: chains.read(scope, data), rounds),
        continued_read_us=_median(reads) / 1000,
        continued_us=_median(totals) / 1000,
        rotated_ms=_median(rotated) / 1e6,
    )


async def _unseen_ms(folder: Path, text: str) -> float:
    exact, taken = _exact(folder), []
    for number in range(7):
        started = time.perf_counter_ns()
        await exact.fingerprint(CALLER, {"messages": _turns(f"{number} {text}")}, chat=True)
        taken.append(time.perf_counter_ns() - started)
    exact.close()
    return _median(taken) / 1e6


async def _loop_held_ms(folder: Path, text: str) -> float:
    """The longest time for which the event loop served nothing else while the text was fingerprinted."""
    exact, held_ns = _exact(folder), 0
    task = asyncio.create_task(exact.fingerprint(CALLER, {"messages": _turns(text)}, chat=True))
    last = time.perf_counter_ns()
    while not task.done():
        await asyncio.sleep(0)
        moment = time.perf_counter_ns()
        held_ns, last = max(held_ns, moment - last), moment
        await asyncio.sleep(LATENCY_PROBE_S)
        last = time.perf_counter_ns()
    exact.close()
    return held_ns / 1e6


async def _bytes_per_block(folder: Path, source: str) -> float:
    exact = _exact(folder)
    fields = _conversation(source, 16_000, 60, exact)
    prefix = await exact.fingerprint(CALLER, fields, chat=True)
    used = exact._chains.bytes_used / len(prefix.hashes)
    exact.close()
    return used


def _hash_us(algorithm: str) -> float:
    rng = random.Random(1)
    ids = [rng.randrange(128_000) for _ in range(16_384)]
    hasher = BlockHasher(algorithm=algorithm, block_size=BLOCK_SIZE)
    return median_us(lambda: hasher.hashes(ids, salt="s"), 30) / (len(ids) // BLOCK_SIZE)


def _conversation(source: str, tokens: int, turns: int, exact: ExactTokenizer) -> dict[str, Any]:
    """A chat of about `tokens` tokens in equal turns."""
    sample = encode(exact._files.tokenizer, source[:40_000])
    share = tokens * 40_000 // len(sample) // turns
    return {"messages": _turns(*(source[n * share : (n + 1) * share] for n in range(turns)))}


def _turns(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]


def _source() -> str:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return "".join(path.read_text(errors="ignore") for path in files[:60])


def _exact(folder: Path) -> ExactTokenizer:
    hasher = BlockHasher(algorithm="sha256", block_size=BLOCK_SIZE)
    return ExactTokenizer(load_model_files(folder), hasher=hasher, secret=SECRET)


def _lab_model(folder: Path) -> Path:
    maker = Path(__file__).resolve().parent.parent / "docker" / "lab" / "mk_model.py"
    runpy.run_path(str(maker))["main"](str(folder))
    return folder


def median_us(call: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - started)
    return round(_median(taken) / 1000, 2)


def _median(values: list[int]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
