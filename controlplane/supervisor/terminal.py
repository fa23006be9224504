"""One terminal and one log file for all roles: a prefix and a colour for each role, plain lines when not a terminal."""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_FILES_MAX = 3
PREFIX_WIDTH = 10
STYLES = {
    "up": "bold",
    "valkey": "red",
    "web": "cyan",
    "celery": "green",
    "beat": "bright_green",
    "kv-events": "magenta",
    "router": "yellow",
    "traffic": "blue",
}
WORKER_STYLE = "bright_black"
SHOWN_FIRST = ("event", "level", "timestamp")


class Terminal:
    """Both the console and the log file take lines from any thread."""

    def __init__(self, log_file: Path) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            log_file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_MAX - 1, encoding="utf-8"
        )
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log_file.chmod(0o600)
        self._log = logging.Logger("up")
        self._log.addHandler(handler)

    def line(self, role: str, text: str) -> None:
        if not text:
            return
        text = readable(text)
        self._log.info("%-*s %s", PREFIX_WIDTH, role, text)
        prefix = Text(f"{role:<{PREFIX_WIDTH}} ", style=STYLES.get(role, WORKER_STYLE))
        self._console.print(prefix + Text(text))

    def take_over_logging(self) -> None:
        """What this process itself logs appears among the roles' lines."""
        handler = _ToTerminal(self)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
        logging.getLogger().handlers = [handler]

    def say(self, text: str) -> None:
        self.line("up", text)

    def secret(self, text: str) -> None:
        """On the terminal alone, not in the log file."""
        self._console.print(Text(f"{'up':<{PREFIX_WIDTH}} ", style=STYLES["up"]) + Text(text, style="bold"))


class _ToTerminal(logging.Handler):
    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self._terminal.say(line)


def readable(line: str) -> str:
    """A JSON log event as `event key=value …`; any other line as it is."""
    if not line.startswith("{"):
        return line
    try:
        fields = msgspec.json.decode(line.encode(), type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return line
    pairs = [f"{key}={value}" for key, value in fields.items() if key not in SHOWN_FIRST]
    return " ".join([str(fields.get("level", "info")).upper(), str(fields.get("event", "")), *pairs])
