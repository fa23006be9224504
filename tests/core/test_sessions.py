"""Session affinity: S2.1, C61."""

from __future__ import annotations

from router.contract.ids import NamespaceId
from router.core.sessions import Sessions
from tests.core.scene import FLEET_KEY, Scene, prompt, worker_id

NAME = NamespaceId("alice/main")


def new_sessions(sessions_max: int = 100) -> Sessions:
    return Sessions(fleet_key=FLEET_KEY, sessions_max=sessions_max, ttl_s=3600.0)


def test_it_remembers_the_last_worker_until_the_time_is_over() -> None:
    sessions = new_sessions()
    key = sessions.key(NAME, "s1")
    sessions.remember(key, worker_id(1), now=0)
    sessions.remember(key, worker_id(2), now=10)
    assert sessions.worker(key, now=3610) == worker_id(2)
    assert sessions.worker(key, now=3611) is None
    assert len(sessions) == 0


def test_it_drops_the_least_recently_used_beyond_its_bound() -> None:
    sessions = new_sessions(sessions_max=3)
    keys = [sessions.key(NAME, f"s{number}") for number in range(4)]
    for key in keys[:3]:
        sessions.remember(key, worker_id(0), now=0)
    sessions.remember(keys[0], worker_id(0), now=1)
    sessions.remember(keys[3], worker_id(0), now=2)
    assert [sessions.worker(key, now=3) is not None for key in keys] == [True, False, True, True]


def test_equal_ids_of_two_namespaces_never_meet() -> None:
    sessions = new_sessions()
    assert sessions.key(NAME, "s1") != sessions.key(NamespaceId("charlie/main"), "s1")
    assert sessions.key(NamespaceId("a/b"), "cd") != sessions.key(NamespaceId("a/bc"), "d")


def test_c61_no_user_text_is_kept_and_affinity_outlives_the_cache() -> None:
    scene = Scene()
    scene.serve(prompt(1, 3000), session="marker-user-text")
    assert "marker-user-text" not in repr(scene.table._sessions._workers)
    assert scene.limits.session_ttl_s >= 3600


def test_a_session_returns_to_its_worker_although_the_prompt_is_unlike_the_last() -> None:
    scene = Scene()
    first = scene.serve(prompt(1, 3000), session="s")
    decisions = [scene.choose(prompt(seed, 3000), session="s") for seed in range(2, 12)]
    assert {(decision.worker, decision.reason) for decision in decisions} == {(first, "session")}
    assert len({scene.choose(prompt(seed, 3000)).worker for seed in range(2, 12)}) > 1


def test_a_prompt_without_text_follows_its_session() -> None:
    scene = Scene()
    first = scene.serve(None, session="images")
    assert {scene.serve(None, session="images") for _ in range(8)} == {first}


def test_the_session_of_another_tenant_attracts_nothing() -> None:
    scene = Scene()
    scene.serve(prompt(1, 3000), "alice", session="s")
    assert scene.choose(prompt(2, 3000), "charlie", session="s").reason == "home"


def test_a_restarted_worker_has_no_sessions() -> None:
    scene = Scene()
    first = scene.serve(prompt(1, 3000), session="s")
    scene.table.worker_forgotten(first)
    assert scene.choose(prompt(2, 3000), session="s").reason == "home"
