#!/usr/bin/env python3
"""Makes `.venv`: finds a CPython ≥ 3.12 that really runs, installs the hash-pinned requirements, compiles the
router's hot modules where there is a C compiler; skips what is done.

usage: python3 docker/bootstrap.py [--tests]

Runs on any python3 ≥ 3.8 with the standard library alone. Exit status 1 and one clear message when it cannot.
"""

import fcntl
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "tidemark-stamp.json")
VERSION_MIN = (3, 12)
VERSION_WANTED = "3.13"
CANDIDATE_TIMEOUT_S = 20
INSTALL_ATTEMPTS = 3
INSTALL_PAUSE_S = 5


class BootstrapError(Exception):
    """The message says what to do."""


def main(arguments):
    wants_tests = "--tests" in arguments
    # The lock is on this very file, so that no other file has to exist; a second caller waits for the first.
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            make_ready(wants_tests)
            compile_router()
        except BootstrapError as error:
            print(f"bootstrap: {error}", file=sys.stderr)
            return 1
    return 0


def make_ready(wants_tests):
    wanted = fingerprints(wants_tests)
    stamp = read_stamp()
    if all(stamp.get(name) == digest for name, digest in wanted.items()) and version_of(VENV_PYTHON):
        return
    if (version_of(VENV_PYTHON) or (0, 0)) < VERSION_MIN:
        make_venv(find_interpreter())
    install("tests/requirements.txt" if wants_tests else "requirements.txt")
    with open(STAMP, "w") as file:
        json.dump(wanted, file)


def fingerprints(wants_tests):
    """SHA-256 of each requirements file that has to be installed. The tests' file holds the other one's pins too."""
    names = ["requirements.txt"] + (["tests/requirements.txt"] if wants_tests else [])
    return {name: digest_of(os.path.join(ROOT, name)) for name in names}


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def read_stamp():
    try:
        with open(STAMP) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def find_interpreter():
    for candidate in candidates():
        version = version_of(candidate)
        if version and version >= VERSION_MIN:
            say(f"using {candidate} ({version[0]}.{version[1]})")
            return candidate
    say("no CPython 3.12 or newer found; fetching one with uv")
    return interpreter_from_uv()


def candidates():
    """In order of preference. A name on the PATH may be a version manager's shim that fails: each one is RUN."""
    for name in ("python3.13", "python3.12"):
        path = shutil.which(name)
        if path:
            yield path
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    for pattern in ("3.13*", "3.12*"):
        for path in sorted(glob.glob(os.path.join(pyenv, "versions", pattern, "bin", "python")), reverse=True):
            yield path
    for name in ("python3", "python"):
        path = shutil.which(name)
        if path:
            yield path


def version_of(python):
    """(major, minor) of a CPython that runs, or None."""
    code = "import sys, ssl, sqlite3; print(sys.implementation.name, *sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=CANDIDATE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = answer.stdout.decode().split()
    if answer.returncode or len(words) != 3 or words[0] != "cpython":
        return None
    return int(words[1]), int(words[2])


def interpreter_from_uv():
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidemark")
    uv = install_uv(cache)
    folder = {"UV_PYTHON_INSTALL_DIR": os.path.join(cache, "python")}
    try:
        subprocess.run([uv, "python", "install", VERSION_WANTED], env=dict(os.environ, **folder), check=True)
        found = subprocess.run(
            [uv, "python", "find", "--managed-python", VERSION_WANTED],
            env=dict(os.environ, **folder),
            stdout=subprocess.PIPE,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        raise BootstrapError(
            "Tidemark needs CPython 3.12 or 3.13, none was found and none could be fetched.\n"
            "  Install one (Debian: apt install python3.12-venv, or pyenv install 3.13) so that `python3.13` or\n"
            "  `python3.12` runs, then repeat the command."
        ) from None
    return found.stdout.decode().strip()


def install_uv(cache):
    """Path of uv: the one on the PATH, else from the package index in a scratch environment."""
    if shutil.which("uv"):
        return shutil.which("uv")
    scratch = os.path.join(cache, "uv-venv")
    uv = os.path.join(scratch, "bin", "uv")
    if not os.path.exists(uv):
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", scratch], check=True)
            subprocess.run([os.path.join(scratch, "bin", "python"), "-m", "pip", "install", "-q", "uv"], check=True)
        except (OSError, subprocess.CalledProcessError):
            raise BootstrapError(
                "Tidemark needs CPython 3.12 or 3.13 and found none; uv, which could fetch one, did not install.\n"
                "  Install CPython 3.12 or 3.13, then repeat the command."
            ) from None
    return uv


def make_venv(python):
    say("making .venv")
    try:
        subprocess.run([python, "-m", "venv", "--clear", VENV], check=True)
    except subprocess.CalledProcessError:
        raise BootstrapError(
            f"`{python} -m venv` failed; on Debian and Ubuntu the package python3-venv (or python3.12-venv) is missing."
        ) from None


def install(requirements):
    """pip with hashes. Retried, since one dropped connection should not end a first start."""
    say(f"installing {requirements} (about a minute the first time)")
    if subprocess.run([VENV_PYTHON, "-m", "pip", "--version"], stdout=subprocess.DEVNULL).returncode:
        subprocess.run([VENV_PYTHON, "-m", "ensurepip", "-q"], check=True)
    command = [VENV_PYTHON, "-m", "pip", "install", "--require-hashes", "--disable-pip-version-check", "--no-input"]
    if not sys.stdout.isatty():
        command += ["-q", "--progress-bar", "off"]
    started_s = time.monotonic()
    for attempt in range(1, INSTALL_ATTEMPTS + 1):
        if subprocess.run([*command, "-r", os.path.join(ROOT, requirements)]).returncode == 0:
            say(f"installed in {time.monotonic() - started_s:.0f} s")
            return
        if attempt < INSTALL_ATTEMPTS:
            say(f"pip failed; trying again in {INSTALL_PAUSE_S} s")
            time.sleep(INSTALL_PAUSE_S)
    raise BootstrapError(f"pip could not install {requirements}; its messages are above.")


def compile_router():
    """Native code for the router, named by its sources' digest. Without it the router serves too, with more CPU for
    each request, so whatever goes wrong is said in a line and no more."""
    if os.environ.get("TIDEMARK_ROUTER_COMPILED") != "off":
        subprocess.run([VENV_PYTHON, "-m", "router.native", "build"], cwd=ROOT)


def say(text):
    print("bootstrap: " + text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
