"""Prefix breakers: a change in front of shared text is found with its place and kind; no text is kept or told."""

from __future__ import annotations

import random
import uuid

import msgspec
import pytest

from router.contract.telemetry import BREAK_KINDS
from router.core import breakers
from router.core.breakers import BreakerWatch

RULES = "\n".join(f"Rule {number}: answer shortly and cite article {number * 7}." for number in range(60))
HEAD = "You are the assistant of a hardware shop in Berlin-Mitte.\n"


def _watch() -> BreakerWatch:
    return BreakerWatch(secret=bytes(range(32)))


def _looked(texts: list[str], **names: str) -> list[tuple[str, int, int]]:
    """(kind, prompts, position) of what was counted; "" is every prompt looked at."""
    watch = _watch()
    rows = []
    where = {"namespace": "acme/a", "pool": "p", "model": "m", "template": ""} | names
    for text in texts:
        data = text.encode()
        assert watch.wants(data)
        watch.look(data, **where)
        rows += watch.take()
    counts: dict[str, list[int]] = {}
    for row in rows:
        seen = counts.setdefault(row.kind, [0, row.position_bytes])
        seen[0] += row.prompts
        seen[1] = min(seen[1], row.position_bytes)
    return sorted((kind, prompts, position) for kind, (prompts, position) in counts.items())


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("clock", lambda n: f"Current time: 2026-03-01 14:{n:02}:07"),
        ("uuid", lambda n: f"Trace {uuid.UUID(int=n * 2**100 + n)}"),
        ("request_id", lambda n: f"request_id: a{n}f"),
        ("hash", lambda n: f"token {random.Random(n).randbytes(12).hex()}1f"),
        ("number", lambda n: f"You have answered {n} questions"),
        ("text", lambda n: f"Be {'very ' * n}kind and polite to every customer who asks you something."),
    ],
)
def test_a_change_in_front_is_found_with_its_kind(kind: str, line) -> None:
    texts = [f"{HEAD}{line(n)}\n{RULES}\nquestion {n}" for n in range(1, 6)]
    assert _looked(texts) == [("", 5, 0), (kind, 4, len(HEAD))]


def test_white_space_alone_is_a_break_of_its_own() -> None:
    texts = [f"{HEAD}Be brief.{' ' * (n % 2)}\n{RULES}" for n in range(4)]
    assert _looked(texts) == [("", 4, 0), ("whitespace", 3, len(HEAD))]


def test_the_same_parts_in_another_order_are_a_break() -> None:
    parts = [f"Document {name}: " + f"{name} " * 80 for name in "abcdef"]
    rng = random.Random(1)
    texts = []
    for _ in range(6):
        rng.shuffle(parts)
        texts.append(HEAD + "\n".join(parts))
    kinds = {kind for kind, _, _ in _looked(texts)}
    assert kinds == {"", "order"}


@pytest.mark.parametrize(
    "texts",
    [
        [f"{HEAD}{RULES}\nquestion {n} {'about pumps ' * n}" for n in range(6)],  # what changes comes last
        [f"{HEAD}{RULES}" for _ in range(4)],  # the same again
        ["\n".join(f"turn {t} says {t * 31}" * 9 for t in range(10 + n)) for n in range(6)],  # a conversation grows
        [f"{HEAD}" + "\n".join(f"{n} unlike {t * n}" * 5 for t in range(40)) for n in range(1, 6)],  # nothing in common
        [
            RULES if n % 2 else RULES.replace("Rule", "Regel").replace("answer", "antworte") for n in range(8)
        ],  # two in turn
    ],
)
def test_prompts_that_part_where_their_texts_do_are_left_alone(texts: list[str]) -> None:
    assert _looked(texts) == [("", len(texts), 0)]


def test_separators_of_canonical_text_end_lines_too() -> None:
    def prompt(number: int) -> bytes:
        return b"\xffsystem\xfe" + f"Time 12:{number:02}".encode() + b"\xffuser\xfe" + RULES.encode()

    watch = _watch()
    for number in range(3):
        watch.look(prompt(number), namespace="a/b", pool="p", model="m", template="t@1")
    (row,) = [row for row in watch.take() if row.kind]
    assert (row.prompts, row.template) == (2, "t@1") and row.lost_bytes >= 2 * len(RULES) - 200


def test_namespaces_and_models_are_not_compared_with_each_other() -> None:
    watch = _watch()
    for namespace, model in (("a/b", "m"), ("a/c", "m"), ("a/b", "n")):
        watch.look(
            f"{HEAD}Time 12:{len(namespace)}\n{RULES}".encode(), namespace=namespace, pool="p", model=model, template=""
        )
    assert {row.kind for row in watch.take()} == {""}


def test_no_text_leaves_it_or_stays_in_it() -> None:
    watch = _watch()
    for number in range(3):
        text = f"{HEAD}SECRET-MARKER {number}\n{RULES}".encode()
        watch.look(text, namespace="a/b", pool="p", model="m", template="")
    assert b"SECRET" not in msgspec.msgpack.encode(watch.take())
    assert "SECRET" not in repr(watch._profiles)


def test_it_looks_a_few_times_a_second_and_at_no_short_prompt() -> None:
    watch = _watch()
    text = (HEAD + RULES).encode()
    looks = 0
    while watch.wants(text):
        watch.look(text, namespace="a/b", pool="p", model="m", template="")
        looks += 1
    assert looks == breakers.LOOKS_PER_S
    watch.take()
    assert watch.wants(text) and not watch.wants(b"short") and not watch.wants(None)


def test_its_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(breakers, "PROFILES_MAX", 10)
    monkeypatch.setattr(breakers, "ROWS_MAX", 20)
    watch = _watch()
    for number in range(100):
        text = ("\n".join(f"{number}-{line}" for line in range(2000))).encode()
        watch.look(text, namespace=f"a/{number}", pool="p", model="m", template="")
    assert len(watch._profiles) <= 10 and len(watch.take()) <= 20
    assert all(len(lines) <= breakers.LINES_MAX for kept in watch._profiles.values() for lines in kept)


def test_every_kind_it_tells_is_of_the_contract() -> None:
    assert {"clock", "uuid", "request_id", "hash", "number", "whitespace", "order", "text"} == set(BREAK_KINDS)
