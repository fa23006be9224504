"""A measured profile as a file: the figures of `hardware.GpuProfile`, which of them were measured, and from what.

Wherever a profile is named, `file:PATH` stands for one of these.
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path

import msgspec

from simulator.fleet.hardware import PROFILES, GpuProfile

FILE = "file:"
FORMAT = 1


class ProfileFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    profile: GpuProfile
    measured: list[str]
    """Fields of the profile that come from the worker; the others are those of `like`."""
    like: str
    source: str
    """`metrics`, `report` or `requests`."""
    request_overhead_s: float | None = None
    """From a request's arrival to its first token, beside queue and steps. Not part of a profile: every policy pays
    it."""
    notes: list[str] = []
    format: int = FORMAT


def write_profile(path: Path, file: ProfileFile) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(file)) + b"\n")


def read_profile(path: Path) -> ProfileFile:
    """Raises OSError or ValueError."""
    file = msgspec.json.decode(path.read_bytes(), type=ProfileFile)
    if file.format != FORMAT:
        raise ValueError(f"{path} has format {file.format}, this reads {FORMAT}")
    wrong = [name for name in _POSITIVE if getattr(file.profile, name) <= 0]
    if wrong:
        raise ValueError(f"{path}: {', '.join(wrong)} must be positive")
    return file


_POSITIVE = (
    "prefill_tokens_per_s", "attention_doubling_tokens", "decode_base_s", "decode_context_token_s",
    "kv_capacity_tokens", "max_num_seqs", "max_num_batched_tokens",
)  # fmt: skip
"""Of a profile: the engine divides by them."""


@cache
def profile_of(name: str) -> GpuProfile:
    """A known one by name, or `file:PATH`. Raises KeyError, OSError or ValueError."""
    if name.startswith(FILE):
        return read_profile(Path(name.removeprefix(FILE))).profile
    return PROFILES[name]


def profile_argument(text: str) -> str:
    """An option's value: a known name, or the path of a file with a measured profile."""
    if text in PROFILES:
        return text
    path = text.removeprefix(FILE)
    try:
        read_profile(Path(path))
    except FileNotFoundError:
        names = ", ".join(PROFILES)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {names}, and no file is there") from None
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path} holds no profile: {error}") from None
    return FILE + path
