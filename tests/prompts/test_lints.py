"""Lints of templates: every planted fault is found at its place, and clean templates are left alone (S0.5, S0.6)."""

from __future__ import annotations

import json

import pytest

from controlplane.prompts.lints import report_on, stable_prefix
from controlplane.prompts.tokens import TokenCounter
from tests.prompts.clean_templates import CLEAN

COUNTER = TokenCounter(block_size=16)
BODY = "You are the assistant of a hardware shop. Be exact, be brief, and cite the article that you answer from. "
QUESTION = {"kind": "dynamic", "name": "question", "text": "{question}"}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Looks something up.", "parameters": {}}}
    for name in ("search", "fetch")
]


def _static(text: str, kind: str = "static") -> list[dict[str, str]]:
    return [{"kind": kind, "name": "rules", "text": text}, QUESTION]


def _codes(segments: list[dict[str, str]]) -> list[tuple[str, int | None]]:
    noise = {"not_block_aligned"}
    return [(lint.code, lint.segment) for lint in report_on(segments, COUNTER).lints if lint.code not in noise]


PLANTED = [
    ("clock_early", BODY + "Current date: 2026-03-01."),
    ("clock_early", BODY + "Today is Monday."),
    ("clock_early", BODY + "The current time is 14:05."),
    ("clock_early", "2026-03-01T14:05:33Z " + BODY + "End."),
    ("clock_early", BODY + "Generated at 1 March 2026, 14:05."),
    ("clock_early", BODY + "timestamp=1767225600"),
    ("clock_early", BODY + "ts: 1767225600123"),
    ("clock_early", BODY + "Local time is 9:30 pm."),
    ("clock_early", BODY + "As of now: March 1, 2026."),
    ("uuid_early", BODY + "Ref 3f2b8c1e-9d4a-4f6b-8e21-0a9b7c6d5e4f."),
    ("uuid_early", "3F2B8C1E-9D4A-4F6B-8E21-0A9B7C6D5E4F\n" + BODY + "End."),
    ("request_id_early", BODY + "Request-ID: a81f93"),
    ("request_id_early", BODY + "session id = 99231"),
    ("request_id_early", BODY + "trace_id: 4bf92f3577b34da6a3ce929d0e0e4736"),
    ("request_id_early", BODY + "chatcmpl-9aB7cD6eF5g"),
    ("request_id_early", BODY + "req_8Hs72kQz91"),
    ("request_id_early", BODY + "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ("hash_early", BODY + "9e107d9d372bb6826bd81d3542a419d6"),
    ("hash_early", BODY + "d41d8cd98f00b204"),
    ("hash_early", BODY + "kJ8sP2xQ9vL4mN7tR1wZ5yB3cD6fG0hA"),
    ("tool_order", BODY + json.dumps(TOOLS, sort_keys=True)),
    ("json_order", BODY + json.dumps({"zeta": "x" * 60, "alpha": "y" * 60})),
    ("edge_whitespace", BODY + "End.\n"),
    ("edge_whitespace", " " + BODY + "End."),
    ("invisible_character", BODY + "zero\u200bwidth."),
    ("invisible_character", BODY + "non\u00a0breaking."),
    ("invisible_character", BODY + "carriage\r\nreturn."),
    ("invisible_character", "\ufeff" + BODY + "End."),
    ("placeholder_early", BODY + "{current_time}"),
    ("placeholder_early", BODY + "{request_id}"),
    ("placeholder_early", BODY + "{user_input}"),
    ("shorter_than_block", "Be brief."),
]


@pytest.mark.parametrize(("code", "text"), PLANTED, ids=[f"{code}-{n}" for n, (code, _) in enumerate(PLANTED)])
def test_a_planted_fault_is_found(code: str, text: str) -> None:
    place = None if code == "shorter_than_block" else 0
    assert _codes(_static(text)) == [(code, place)]


def test_changing_values_count_in_semi_static_segments_and_not_in_dynamic_ones() -> None:
    changing = "Today is Monday, request id: 77."
    early = [{"kind": "static", "name": "rules", "text": BODY + "End."}, *_static(changing, "semi_static")[:1]]
    early[1]["name"] = "topic"
    assert {code for code, _ in _codes(early)} == {"clock_early", "request_id_early"}
    late = [early[0], {"kind": "dynamic", "name": "turn", "text": changing}]
    assert _codes(late) == []


def test_what_changes_often_must_not_come_first() -> None:
    segments = [QUESTION, {"kind": "static", "name": "rules", "text": BODY + "End."}]
    (lint,) = [lint for lint in report_on(segments, COUNTER).lints if lint.severity == "error"]
    assert (lint.code, lint.segment) == ("dynamic_before_static", 1) and "Move it up" in lint.fix


def test_each_lint_says_where_and_what_to_do_and_repeats_no_text() -> None:
    secret = "3f2b8c1e-9d4a-4f6b-8e21-0a9b7c6d5e4f"
    (lint,) = [lint for lint in report_on(_static(BODY + secret + "."), COUNTER).lints if lint.severity == "error"]
    assert lint.position == len(BODY) and lint.fix
    assert secret not in lint.message + lint.fix


@pytest.mark.parametrize("number", range(len(CLEAN)))
def test_a_clean_template_gives_no_false_alarm(number: int) -> None:
    assert [code for code, _ in _codes(CLEAN[number]) if code != "shorter_than_block"] == []


def test_there_are_fifty_clean_templates() -> None:
    assert len(CLEAN) == 50


def test_the_report_counts_tokens_and_the_stable_prefix() -> None:
    report = report_on(_static("a" * 4 * 40), COUNTER)
    assert [part.tokens for part in report.segments] == [40, 3]
    assert (report.stable_tokens, report.stable_blocks, report.exact) == (41, 2, False)  # the joint is a token's begin
    assert [lint.code for lint in report.lints] == ["not_block_aligned"]


def test_the_stable_prefix_ends_at_the_first_placeholder() -> None:
    segments = [{"kind": "static", "name": "rules", "text": "For {customer}: be brief."}, QUESTION]
    assert stable_prefix(segments) == "For "
    assert stable_prefix([{"kind": "static", "name": "r", "text": "a {{literal}} b"}, QUESTION]) == "a {{literal}} b\n"


HOSTILE_UUIDS = "3f2b8c1e-9d4a-4f6b-8e21-0a9b7c6d5e4f " * 25_000


def test_a_text_full_of_faults_has_a_short_list_with_every_error_in_it() -> None:
    segments = [
        {"kind": "semi_static", "name": f"s{number}", "text": HOSTILE_UUIDS[:40_000] + "\u200b" * 5000}
        for number in range(20)
    ]
    report = report_on(segments, COUNTER)
    assert len(report.lints) == 200 and {lint.severity for lint in report.lints} == {"error"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        HOSTILE_UUIDS,
        "\u200b" * 900_000,
        "{now}" * 200_000,
        "req_" + "1" * 500_000 + "_",
        "{" * 200_000,
        "a1B" * 300_000,
        '{"a":' * 50_000,
    ],
)
def test_a_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    report_on(_static(text), COUNTER)
