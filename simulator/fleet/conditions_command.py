"""Flags of `python -m simulator fleet` for a run's conditions; without them it is ideal."""

from __future__ import annotations

import argparse

from simulator.fleet.conditions import IDEAL, Conditions, Departure, Tier


def add_conditions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conditions", "Off, or ideal, unless stated.")
    ideal, tier = IDEAL, IDEAL.tier
    add = group.add_argument
    add("--scrape-delay", type=float, default=ideal.scrape_delay_s, metavar="S", help="metrics to router, default 0.3")
    add("--event-delay", type=float, default=ideal.event_delay_s, metavar="S", help="KV events to router, default 0")
    add("--event-loss", type=float, default=ideal.event_loss, metavar="SHARE", help="of KV event batches, default 0")
    add("--no-event-replay", action="store_true", help="a router cannot ask for the events that it missed")
    add("--leaves-per-h", type=float, default=ideal.leaves_per_h, metavar="N", help="deaths a worker, default 0")
    add("--away", type=float, default=ideal.away_s, metavar="S", help="until it is back, empty; default 30")
    add(
        "--leave", type=_departures, default=ideal.departures, metavar="AT:WORKER:AWAY,…",
        help="worker number WORKER, from 0, dies at AT s for AWAY s",
    )  # fmt: skip
    add("--tenants", type=int, default=ideal.tenants, metavar="N", help="with salts of their own, default 1")
    add("--tier-gib", type=float, default=tier.gib, metavar="GIB", help="a KV tier that all share, default 0 = none")
    add("--tier-gib-per-s", type=float, default=tier.gib_per_s, metavar="GIB/S", help="default 10")
    add("--tier-setup-ms", type=float, default=tier.setup_ms, metavar="MS", help="of a load, default 1")


def conditions_of(options: argparse.Namespace) -> Conditions:
    """Raises ValueError for what cannot be."""
    conditions = Conditions(
        scrape_delay_s=options.scrape_delay,
        event_delay_s=options.event_delay,
        event_loss=options.event_loss,
        event_replay=not options.no_event_replay,
        leaves_per_h=options.leaves_per_h,
        away_s=options.away,
        departures=options.leave,
        tenants=options.tenants,
        tier=Tier(options.tier_gib, options.tier_gib_per_s, options.tier_setup_ms),
    )
    conditions.check()
    return conditions


def _departures(text: str) -> tuple[Departure, ...]:
    try:
        parts = [part.split(":") for part in text.split(",")]
        return tuple(Departure(float(at), int(worker), float(away)) for at, worker, away in parts)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not AT:WORKER:AWAY,…") from None
