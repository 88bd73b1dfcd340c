"""Refuse network access. Python runs this when a process starts whose PYTHONPATH has this folder."""

import sys

_EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname")
_LOCAL = ("127.", "localhost", "::1")


def _refuse(event: str, arguments: tuple) -> None:
    if event in _EVENTS:
        address = arguments[0] if event.startswith("socket.get") else arguments[1]
        host = address[0] if isinstance(address, tuple) else address
        is_unix_socket = isinstance(address, bytes | str) and event == "socket.connect"
        if not is_unix_socket and not str(host).startswith(_LOCAL):
            raise PermissionError(f"network access: {event} {address}")


sys.addaudithook(_refuse)
