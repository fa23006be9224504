"""Django settings of the tests: those of the product in a run folder that ends with the test run."""

import atexit
import os
import shutil
import tempfile

if "TIDEMARK_RUN_DIR" not in os.environ:
    _run_dir = tempfile.mkdtemp(prefix="tidemark-test-")
    os.environ["TIDEMARK_RUN_DIR"] = _run_dir
    atexit.register(shutil.rmtree, _run_dir, ignore_errors=True)

from controlplane.settings import *  # noqa: F403

# The slow password hash would be most of the tests' time.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
