"""The end of listening without losing a client: for routers that replace each other on one port (A24)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable


async def stop_listening(server: asyncio.Server, protocol: Callable[[], asyncio.Protocol]) -> None:
    """Take in the connections that wait, and stop listening before another can come.

    The kernel resets what waits in the queue of a socket that is closed, also where another process listens on the
    port. Between the last accept and the shutdown are microseconds; a server's own close leaves a turn of the loop.
    """
    loop = asyncio.get_running_loop()
    waiting: list[socket.socket] = []
    for listening in server.sockets:
        with socket.socket(fileno=socket.dup(listening.fileno())) as queue:
            queue.setblocking(False)
            waiting += _accepted(queue)
            queue.shutdown(socket.SHUT_RDWR)
    for client in waiting:
        await loop.connect_accepted_socket(protocol, client)
    server.close()


def _accepted(queue: socket.socket) -> list[socket.socket]:
    accepted: list[socket.socket] = []
    while True:
        try:
            client, _ = queue.accept()
        except (BlockingIOError, ConnectionError):
            return accepted
        client.setblocking(False)
        accepted.append(client)
