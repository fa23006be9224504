"""Addresses the control plane may be told to call (S17)."""

from __future__ import annotations

import pytest

from controlplane.fleet.addresses import AddressRefused, check_address, parse_endpoint, pin, resolve

NETWORKS = ["10.0.0.0/8", "127.0.0.0/8", "fd00::/8", "169.254.0.0/16"]
HTTP = ("http", "https")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("http://10.0.0.7:8000/", "http://10.0.0.7:8000"),
        ("https://Worker-1.Example:8443", "https://worker-1.example:8443"),
        ("http://[FD00::7]:8000", "http://[fd00::7]:8000"),
    ],
)
def test_it_accepts_plain_forms(text, url):
    assert parse_endpoint(text, schemes=HTTP).url == url


@pytest.mark.parametrize(
    "text",
    [
        "", "ftp://10.0.0.7:8000", "http://10.0.0.7", "http://10.0.0.7:0", "http://10.0.0.7:99999", "10.0.0.7:8000",
        "http://user:pw@10.0.0.7:8000", "http://@10.0.0.7:8000", "http://10.0.0.7:8000/v1", "http://10.0.0.7:8000?x=1",
        "http://10.0.0.7:8000#x", "http://2130706433:8000", "http://0177.0.0.1:8000", "http://0x7f.1:8000",
        "http://0x7f000001:8000", "http://127.1:8000", "http://10.0.0.07:8000", "http://127.0.0.1.:8000",
        "http://10.0.0.7:8000\r\nx: y", "http://10.0.0.7 :8000", "http://ｅxample:8000", "http://exa_mple..x:8000",
        "http://[::ffff:10.0.0.7%eth0]:8000", "http://:8000", "http://-x:8000", "http://" + "a" * 300 + ":8000",
    ],
)  # fmt: skip
def test_it_refuses_every_other_form(text):
    with pytest.raises(AddressRefused):
        pin(parse_endpoint(text, schemes=HTTP), networks=["0.0.0.0/0", "::/0"], resolver=lambda host, port: [host])


@pytest.mark.parametrize(
    "address",
    ["192.168.1.1", "8.8.8.8", "169.254.169.254", "fe80::1", "::ffff:10.0.0.7", "0.0.0.0", "::", "224.0.0.1", "ff02::1",
     "fe80::1%eth0"],
)  # fmt: skip
def test_it_refuses_addresses_outside_the_networks_and_special_ones_inside(address):
    with pytest.raises(AddressRefused):
        check_address(address, networks=NETWORKS)


def test_every_address_of_a_name_must_pass():
    endpoint = parse_endpoint("http://w:8000", schemes=HTTP)
    with pytest.raises(AddressRefused):
        resolve(endpoint, networks=NETWORKS, resolver=lambda host, port: ["10.0.0.7", "8.8.8.8"])


def test_the_connection_goes_to_the_address_that_was_checked():
    answers = iter([["10.0.0.7"], ["8.8.8.8"]])
    pinned = pin(
        parse_endpoint("https://w:8000", schemes=HTTP), networks=NETWORKS, resolver=lambda host, port: next(answers)
    )
    assert (pinned.url, pinned.host_header, pinned.server_name) == ("https://10.0.0.7:8000", "w:8000", "w")


def test_a_name_that_does_not_resolve_is_refused():
    def fails(host: str, port: int) -> list[str]:
        raise OSError

    with pytest.raises(AddressRefused, match="does not resolve"):
        resolve(parse_endpoint("http://w:8000", schemes=HTTP), networks=NETWORKS, resolver=fails)
