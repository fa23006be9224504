"""Exact mode: what long prompts that nobody sent before cost everybody else's requests (head-of-line blocking).

Others play short conversations with a known head on eight connections before a worker that answers in 20 ms. Slices
with and without a sender of 64 KB prompts of source text, five a second, take turns. Router with the tokenizer that the
lab's model has, pinned to one core as everywhere; its tokenising threads share that core.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import runpy
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.ports import BACKENDS, EVENTS_PORT, REPLAY_PORT, proxy_ports
from benchmarks.proxy import run_slice, spoilt
from benchmarks.proxybench.kit import (
    HOME,
    LOAD_CORE,
    BenchError,
    Peer,
    build_kit,
    start_pinned,
    wait_for_answer,
)
from benchmarks.proxybench.ours import Fleet, ask_ours, start_ours
from benchmarks.report import Bar, Report, median
from benchmarks.tokenizing_worker import ALGORITHM, BLOCK_SIZE

ANSWER_MS = 20
OTHERS = ("-c", "8", "-G", "50", "-P", "8000", "-U", "60", "-d", "5")
UNSEEN_BYTES = 64 * 1024
UNSEEN_A_SECOND = 5
EXACT_WITHIN_S = 30
"""Files are loaded, the worker is proven, its events are followed."""
P99_RATIO_MAX = 1.2


def measure(report: Report) -> None:
    build_kit()
    with ExitStack() as stack:
        peer = _start(stack)
        run_slice(peer, *OTHERS)
        texts = _unseen_texts()
        quiet: list[dict[str, Any]] = []  # Any: the generator's JSON
        beside: list[dict[str, Any]] = []
        taken: list[float] = []
        before_bytes = _exact_page(peer)["bytes"]
        for turn in range(report.rounds):
            seed = ("-S", str(10_000_000 + turn * 2_000_000))
            quiet.append(run_slice(peer, *OTHERS, *seed))
            with _Sender(peer, texts) as sender:
                beside.append(run_slice(peer, *OTHERS, "-S", str(11_000_000 + turn * 2_000_000)))
            taken += sender.taken_ms
        page = _exact_page(peer)
    why = spoilt(quiet) or spoilt(beside) or _doubt(page, page["bytes"] - before_bytes, len(taken), report.rounds)
    ratio = median(with_["p99_us"] / without["p99_us"] for with_, without in zip(beside, quiet, strict=True))
    title = "others' p99 beside unseen 64 KB prompts, exact mode"
    report.add(f"{title}, ÷ without", "×", ratio, bars=[Bar(P99_RATIO_MAX)], why=why, failed=bool(why))
    report.add(f"{title}", "ms", median(run["p99_us"] / 1000 for run in beside))
    report.add("answer to an unseen 64 KB prompt, p50", "ms", median(taken) if taken else None)


def _doubt(page: dict[str, Any], grown_bytes: int, sent: int, rounds: int) -> str:
    """Why the figures are not about exact mode, or ""."""
    if page["status"] != "exact":
        return f"the pool is not exact: {page['status']}"
    if not sent or grown_bytes <= 0:
        return "no unseen prompt was tokenised"
    return ""


class _Sender:
    """Sends prompts at a steady pace from a thread, whether or not the last one is answered, until it is left."""

    def __init__(self, peer: Peer, texts: Iterator[str]) -> None:
        self.taken_ms: list[float] = []
        self._peer = peer
        self._texts = texts
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Sender:
        self._threads.append(threading.Thread(target=self._pace))
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._threads[0].join()
        for sending in self._threads[1:]:
            sending.join()

    def _pace(self) -> None:
        while not self._stop.wait(1 / UNSEEN_A_SECOND):
            thread = threading.Thread(target=self._send, args=(next(self._texts),))
            self._threads.append(thread)
            thread.start()

    def _send(self, text: str) -> None:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1})
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._peer.key}"}
        connection = http.client.HTTPConnection("127.0.0.1", self._peer.port, timeout=30)
        started_s = time.monotonic()
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status == 200:
            self.taken_ms.append((time.monotonic() - started_s) * 1000)


def _unseen_texts() -> Iterator[str]:
    """Source code from anywhere in the standard library, so that no piece of it comes twice."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    source = "".join(file.read_text(errors="ignore") for file in files)
    draw = random.Random(3)
    for number in itertools.count():
        start = draw.randrange(len(source) - UNSEEN_BYTES)
        yield f"{number} {source[start : start + UNSEEN_BYTES]}"


def _start(stack: ExitStack) -> Peer:
    """The router in exact mode before one worker; raises BenchError when it does not become exact."""
    models = Path(tempfile.mkdtemp(prefix="models-", dir=HOME / "run"))
    stack.callback(shutil.rmtree, models, ignore_errors=True)
    runpy.run_path(str(ROOT / "docker" / "lab" / "mk_model.py"))["main"](str(models / "m"))
    port = BACKENDS[0]
    argv = [sys.executable, "-m", "benchmarks.tokenizing_worker", str(port), str(EVENTS_PORT), str(REPLAY_PORT)]
    worker = start_pinned([*argv, str(models / "m"), str(ANSWER_MS)], core=LOAD_CORE, name="tokenizing-worker")
    stack.callback(worker.stop)
    if not wait_for_answer(port, key=None):
        raise BenchError(f"the mock worker does not answer; see {worker.log}")
    fleet = Fleet(
        tokenizer="m",
        tokenizer_dir=models,
        block_size=BLOCK_SIZE,
        kv_events=(f"tcp://127.0.0.1:{EVENTS_PORT}",),
        kv_replay=(f"tcp://127.0.0.1:{REPLAY_PORT}",),
        hash_algorithm=ALGORITHM,
    )
    peer = start_ours(proxy_ports()[0], [port], fleet=fleet)
    stack.callback(peer.running.stop)
    give_up_at = time.monotonic() + EXACT_WITHIN_S
    while not wait_for_answer(peer.port, key=peer.key) or _exact_page(peer)["status"] != "exact":
        if time.monotonic() > give_up_at:
            raise BenchError(f"the pool does not become exact: {_exact_page(peer)['status']}")
        time.sleep(0.2)
    return peer


def _exact_page(peer: Peer) -> dict[str, Any]:  # Any: JSON for people
    page: dict[str, Any] = ask_ours(peer, "/state")["exact"]["pools"]["p"]
    return page
