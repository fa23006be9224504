"""Ports are asked for before anything starts."""

from __future__ import annotations

import socket

from controlplane.supervisor.ports import Port, taken


def test_a_listening_port_is_named_with_its_purpose_and_variable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (sentence,) = taken([Port("127.0.0.1", port, "router", "TIDEMARK_ROUTER_PORT")])
    assert sentence == f"127.0.0.1:{port} (router) is in use; set TIDEMARK_ROUTER_PORT to another port"


def test_a_free_port_gives_no_complaint(free_port: int) -> None:
    assert taken([Port("127.0.0.1", free_port, "router", "TIDEMARK_ROUTER_PORT")]) == []


def test_an_address_of_another_machine_is_said_to_be_unusable(free_port: int) -> None:
    (sentence,) = taken([Port("192.0.2.1", free_port, "router", "TIDEMARK_ROUTER_PORT")])
    assert "cannot be used" in sentence
