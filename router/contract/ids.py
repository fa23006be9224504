"""Identifiers. Stable, readable slugs: they appear in snapshots, metrics, rollups and URLs alike."""

from __future__ import annotations

from typing import NewType

TenantId = NewType("TenantId", str)
"""Slug of a tenant, unique in the installation: `acme`."""

NamespaceId = NewType("NamespaceId", str)
"""`<tenant>/<namespace slug>`: `acme/support`. Cache keys and salts are made inside it."""

PoolId = NewType("PoolId", str)
"""Slug of a pool of interchangeable workers: `llama-70b`."""

WorkerId = NewType("WorkerId", str)
"""`<pool>/<worker slug>`: `llama-70b/w1`. Scoped by its pool, so equal names in two pools never meet."""

KeyId = NewType("KeyId", str)
"""The public part of an API key: `tm_<KeyId>_<secret>`."""

RouterId = NewType("RouterId", str)
"""Name of one router process: host and process slot by default."""

TemplateRef = NewType("TemplateRef", str)
"""`<template slug>@<version>` of the tenant's prompt template, or `""` when the request names none."""
