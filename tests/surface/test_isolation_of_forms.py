"""Prompts in several forms: the bound says `unknown` where text cannot tell, `violation` where it can (S8)."""

from __future__ import annotations

import json

import pytest

from router.core.model import Assessment
from router.http.endpoints import CHAT
from router.http.openai import parse_for
from tests.core.scene import Scene, prompt, worker_id


def serve(scene: Scene, text: bytes, form: str, *, cached: int, tenant: str = "alice") -> Assessment:
    request = scene.request(text, tenant, form=form)
    decision = scene.table.choose(request, now=scene.now)
    decision.worker = worker_id(0)
    return scene.finish(scene.table.reserve(decision, now=scene.now), cached=cached)


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.now += 5
    made.fresh_caches()
    return made


def test_it_flags_what_no_text_of_the_namespace_explains(scene: Scene) -> None:
    serve(scene, prompt(1, 8000), "chat", cached=0)
    assert serve(scene, prompt(2, 8000), "chat", cached=1984).isolation == "violation"


@pytest.mark.parametrize(("first", "second"), [("text", "ids"), ("ids", "text"), ("chat", "text"), ("several", "chat")])
def test_it_does_not_know_when_the_same_tokens_may_have_come_in_another_form(
    scene: Scene, first: str, second: str
) -> None:
    serve(scene, prompt(1, 8000), first, cached=0)
    assert serve(scene, prompt(2, 8000), second, cached=1984).isolation == "unknown"


def test_it_does_not_know_how_many_tokens_media_has(scene: Scene) -> None:
    serve(scene, prompt(1, 8000), "media", cached=0)
    assert serve(scene, prompt(2, 8000), "media", cached=1984).isolation == "unknown"


def test_it_still_flags_a_namespace_that_sent_nothing(scene: Scene) -> None:
    serve(scene, prompt(1, 8000), "ids", cached=0)
    assert serve(scene, prompt(1, 8000), "ids", cached=1984, tenant="charlie").isolation == "violation"


def test_it_knows_what_lies_within_the_bytes_in_any_form(scene: Scene) -> None:
    serve(scene, prompt(1, 8000), "text", cached=0)
    assert serve(scene, prompt(1, 8000), "ids", cached=1984).isolation == "ok"


def form_of(**fields: object) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_for(CHAT, json.dumps(body).encode()).form


def tool(name: str, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **more}}


def test_a_template_may_leave_tools_out_so_another_set_of_them_is_another_form(scene: Scene) -> None:
    """Rendered without tools, both prompts are the same tokens, while their texts part at the first byte."""
    first, second = form_of(tools=[tool("look_up")]), form_of(tools=[tool("write")])
    assert len({first, second, form_of()}) == 3
    serve(scene, prompt(1, 8000), first, cached=0)
    assert serve(scene, prompt(2, 8000), second, cached=1984).isolation == "unknown"


def test_the_same_tools_stay_one_form_and_leaks_behind_them_are_flagged(scene: Scene) -> None:
    one = form_of(tools=[tool("look_up", description="d")])
    same = form_of(tools=[{"function": {"description": "d", "name": "look_up"}, "type": "function"}])
    assert one == same
    serve(scene, prompt(1, 8000), one, cached=0)
    assert serve(scene, prompt(2, 8000), same, cached=1984).isolation == "violation"


def test_a_thousand_forms_are_not_remembered(scene: Scene) -> None:
    for number in range(1000):
        serve(scene, prompt(number, 600), f"chat+{number}", cached=0)
    (record,) = scene.table._histories._records.values()
    assert len(record.forms) <= 2
