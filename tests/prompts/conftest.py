from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from controlplane.fleet.models import WorkerPool
from tests.control.conftest import *  # noqa: F403 - Alice, Bob, Charlie and a Valkey that is not there

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def lab_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's model: a byte-level BPE trained from the standard library."""
    folder = tmp_path_factory.mktemp("model")
    runpy.run_path(str(ROOT / "docker" / "lab" / "mk_model.py"))["main"](str(folder))
    return folder


@pytest.fixture
def tokenizer_dir(lab_model: Path, tmp_path: Path, settings) -> Path:
    """A routers' folder of tokenizers with the lab's as `lab`."""
    shutil.copytree(lab_model, tmp_path / "tokenizers" / "lab")
    settings.CONFIG = settings.CONFIG.model_copy(update={"router_tokenizer_dir": tmp_path / "tokenizers"})
    return tmp_path / "tokenizers"


@pytest.fixture
def exact_pool(tokenizer_dir: Path, pool: WorkerPool) -> WorkerPool:
    """`llama`, counted by the lab's tokenizer."""
    pool.tokenizer = "lab"
    pool.save()
    return pool
