"""Python runs this at its start, in every process whose PYTHONPATH has this folder: nobody may reach out."""

import sys

_ASKED = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname")
_HERE = ("127.", "localhost", "::1")


def _watch(event: str, arguments: tuple) -> None:
    if event in _ASKED:
        address = arguments[0] if event.startswith("socket.get") else arguments[1]
        host = address[0] if isinstance(address, tuple) else address  # a path is a socket of this machine
        if not (isinstance(address, bytes | str) and event == "socket.connect") and not str(host).startswith(_HERE):
            raise PermissionError(f"reached out: {event} {address}")


sys.addaudithook(_watch)
