"""Which modules are compiled, and where the build of exactly these sources for exactly this Python lies.

The sources stay the one truth: a build is named by the digest of every compiled source, so an edited file has no build
until it is made anew, and a stale one is never used. Builds lie beside the installed packages, never among the sources.

Left out are modules that define msgspec Structs or exceptions with class attributes, which mypyc cannot make native,
what holds
msgspec's Raw and bytes in one variable, and what runs once a second or less.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GROUP = "tidemark_router"
"""mypyc puts all modules into one library of this name, so that calls between them are plain C calls."""
FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-fwrapv", "-w")
"""-O3 compiles a third longer and was not measured to be faster."""

MODULES = (
    "router.adapters.telemetry_aggregate",
    "router.adapters.telemetry_reach",
    "router.call",
    "router.contract.cohorts",
    "router.contract.histogram",
    "router.core.beliefs",
    "router.core.budget",
    "router.core.choice",
    "router.core.ejection",
    "router.core.exact.expected",
    "router.core.exact.tenant_cache",
    "router.core.explain",
    "router.core.fingerprint",
    "router.core.fleet",
    "router.core.heat",
    "router.core.hints",
    "router.core.hot",
    "router.core.index",
    "router.core.isolation",
    "router.core.lease",
    "router.core.ledger",
    "router.core.limits",
    "router.core.model",
    "router.core.order",
    "router.core.peers",
    "router.core.placement",
    "router.core.policy_book",
    "router.core.prefix_tree",
    "router.core.proofs",
    "router.core.pulls",
    "router.core.rates",
    "router.core.retry_budget",
    "router.core.ring",
    "router.core.score",
    "router.core.sessions",
    "router.core.table",
    "router.core.transfer",
    "router.core.view",
    "router.core.watermarks",
    "router.explaining",
    "router.http.answer_head",
    "router.http.answers",
    "router.http.canonical",
    "router.http.chunked",
    "router.http.head",
    "router.http.known_head",
    "router.http.named_events",
    "router.http.openai",
    "router.http.plain_chat",
    "router.http.protocol",
    "router.http.pulling",
    "router.http.relay",
    "router.http.upstream",
    "router.http.usage",
    "router.http.worker_answers",
    "router.http.worker_request",
    "router.http.worker_url",
    "router.service",
)


def source_of(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def digest() -> str:
    """Of the sources, the flags and the Python they are compiled for."""
    found = hashlib.sha256(repr((sysconfig.get_config_var("SOABI"), sys.version, GROUP, FLAGS)).encode())
    for module in MODULES:
        text = source_of(module).read_bytes()
        found.update(b"%s %d\n" % (module.encode(), len(text)))
        found.update(text)
    return found.hexdigest()[:24]


def builds() -> Path:
    """The folder of all builds, as trusted as the packages installed beside it."""
    return Path(sys.prefix) / "tidemark-native"


def build_folder() -> Path:
    return builds() / digest()


def library_of(folder: Path, module: str) -> Path:
    return folder / (module.replace(".", "/") + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))
