"""Django settings of the tests: those of the product in a run folder that ends with the test run."""

import atexit
import os
import shutil
import tempfile

if "TIDEMARK_RUN_DIR" not in os.environ:
    _run_dir = tempfile.mkdtemp(prefix="tidemark-test-")
    os.environ["TIDEMARK_RUN_DIR"] = _run_dir
    atexit.register(shutil.rmtree, _run_dir, ignore_errors=True)

# Routers that tests start serve with the sources as they are; `tests/compiled` tests the compiled ones.
os.environ.setdefault("TIDEMARK_ROUTER_COMPILED", "off")

from controlplane.settings import *  # noqa: F403

# One process, and callers whose ids repeat from test to test: no limit unless a test sets one.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
CONFIG.api_reads_per_min = CONFIG.api_changes_per_min = 1_000_000  # noqa: F405

# The slow password hash would be most of the tests' time.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
