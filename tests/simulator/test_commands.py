"""The command line turns flags into configurations, and says what is wrong with bad ones."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from simulator import commands
from simulator.__main__ import main


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    subcommands = parser.add_subparsers()
    commands.add_worker(subcommands)
    commands.add_traffic(subcommands)
    return parser.parse_args(arguments)


def test_it_builds_a_worker_from_flags() -> None:
    flags = "worker --port 9001 --blocks 512 --block-size 32 --fault slow=3 --no-prompt-tokens-details --name w7"
    config = commands.worker_config(parsed(flags.split()))
    assert (config.port, config.name, config.limits.blocks, config.limits.block_size_tokens) == (9001, "w7", 512, 32)
    assert config.faults.slow == 3
    assert not config.prompt_tokens_details


def test_it_never_shows_an_api_key() -> None:
    config = commands.worker_config(parsed(["worker", "--port", "9001", "--api-key", "secret-key"]))
    assert "secret-key" not in repr(config)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("worker --port 1 --blocks 1", "--blocks"),
        ("worker --port 1 --time-scale 0", "--time-scale must be positive"),
        ("worker --port 1 --fault slow", "name=value"),
        ("worker --port 1 --fault slow=no", "slow"),
        ("traffic --keys /nonexistent/keys.json", "cannot read"),
    ],
)
def test_it_names_what_is_wrong(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags.split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "keys.json: "),
        ("[]", "1 to 1000"),
        ('[{"tenant":"a"}]', "namespace"),
        ('[{"tenant":"a","namespace":"a/x","key":"tm_secret","model":"m","share":-1}]', "negative"),
    ],
)
def test_it_refuses_bad_keys_files_without_showing_keys(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(content)
    assert main(["traffic", "--keys", str(keys)]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "tm_secret" not in shown


def test_it_needs_two_tenants_for_probes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('[{"tenant":"a","namespace":"a/x","key":"k","model":"m"}]')
    assert main(["traffic", "--keys", str(keys), "--probe-isolation", "0.1"]) == 2
    assert "two tenants" in capsys.readouterr().err
