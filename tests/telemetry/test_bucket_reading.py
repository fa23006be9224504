"""What the database adds up is what Python adds up over the raw rows, on both databases; unknown stays unknown."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.telemetry import available, heat, tenant_use
from controlplane.telemetry.bucket_reading import merged_texts, read_buckets
from controlplane.telemetry.tiles import tile_segments
from controlplane.telemetry.windows import Scope
from tests.telemetry import raw_rows
from tests.telemetry.raw_rows import NOW

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.django_db
def test_every_reading_is_the_plain_sum_of_its_rows() -> None:
    raw_rows.fill(random.Random(7))
    raw_rows.check()


@pytest.mark.postgres
def test_postgresql_adds_up_the_same(postgres_url: str) -> None:
    environment = os.environ | {"TIDEMARK_DATABASE_URL": postgres_url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-m", "tests.telemetry.raw_rows"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.stdout == "postgresql: all agree\n", done.stdout + done.stderr


@pytest.mark.django_db
def test_without_rows_nothing_is_known() -> None:
    scope = Scope(NOW - timedelta(hours=1), NOW)
    assert read_buckets(scope, tile_segments(scope, now=NOW), raw_rows.FIELDS).rows == []
    assert available.reach_series(scope, now=NOW).total is None
    assert heat.worker_cells(scope, heat.heat_grid(scope, now=NOW), "kv_use", ()) == {}
    assert tenant_use.use_by_namespace(scope, now=NOW) == {}


def test_counts_of_several_texts_are_added_label_by_label() -> None:
    assert merged_texts(None) == {}
    assert merged_texts('{"-150":1,"a b":2},{"a b":3}') == {"-150": 1, "a b": 5}
