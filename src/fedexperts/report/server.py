"""The server of `fedexperts watch`: two addresses, read only, for the browsers of this machine."""

import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from fedexperts.errors import SettingsError
from fedexperts.report.live import Watched

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """Shows what is watched."""

    daemon_threads = True

    def __init__(self, watched: Watched, host: str, port: int) -> None:
        self.watched = watched
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port (0: any that is free)"
            ) from None

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def knows(self, host: str | None) -> bool:
        """Whether a request is meant for us: by number, or as this machine.

        A page from elsewhere may have a name of its own point here and then read what it gets; that name stands in the
        request.
        """
        name = urlsplit(f"//{host}").hostname or ""
        return is_number(name) or name in ("localhost", socket.gethostname().lower())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host == "localhost" or (is_number(host) and ip_address(host).is_loopback)


def is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class _Handler(BaseHTTPRequestHandler):
    """Nothing in a request names a file, so no request can reach one that is not shown."""

    server: Server
    server_version = "fedexperts"
    sys_version = ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if not self.server.knows(self.headers.get("Host")):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", f"open {self.server.url}")
        elif address.path == "/":
            self._answer(HTTPStatus.OK, "text/html", self.server.watched.page())
        elif address.path == "/news":
            seen = parse_qs(address.query).get("seen", [""])[0]
            news = self.server.watched.news(seen)
            self._answer(HTTPStatus.NO_CONTENT if news is None else HTTPStatus.OK, "application/json", news or "")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"there is nothing but {self.server.url}")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """A terminal needs no line for each of a browser's questions."""
