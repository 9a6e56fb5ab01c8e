"""Question: how does a browser of this machine read which files, and nobody else?

Other users and pages can reach a port of this machine too. So a path begins with a token that only
the printed addresses have; a request that came by another name (a page whose own name was pointed
at 127.0.0.1) or from a script of another origin is refused; and no answer allows another origin
to read it. Only GET and HEAD are answered, so there is nothing to change.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, BinaryIO

from moeprof.errors import ViewError

LOOPBACK = "127.0.0.1"
_NAMES = (LOOPBACK, "localhost")
_PATIENCE_S = 30  # for the next request on a connection that is kept open
_PIECE_BYTES = 1 << 20
_EVERYWHERE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # a link out of a page does not tell the token
    "Cross-Origin-Resource-Policy": "same-origin",
    # a page that opens ours gets no hold of it; ours may talk to the viewer that it opens
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
    "Cache-Control": "no-store",
}


class ViewServer(ThreadingHTTPServer):
    """Serves one table on 127.0.0.1; `address` is where its paths begin."""

    daemon_threads = True
    request_queue_size = 128  # a browser opens several at once
    block_on_close = False

    def __init__(self, port: int = 0) -> None:
        """Take a port, by default a free one; `table` is given when it is known.

        Raises:
            ViewError: the port cannot be had.
        """
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise ViewError(f"port {port}: {_why_not(error)}") from error
        self.table: Table = {}
        self.token = secrets.token_urlsafe(16)
        self.port = self.server_port
        self.names = frozenset(f"{name}{_in_name(self.port)}" for name in _NAMES)

    def server_bind(self) -> None:
        """Without asking the network for a name of this machine, as an `HTTPServer` would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, int(self.server_address[1])

    @property
    def address(self) -> str:
        """``http://127.0.0.1:PORT/TOKEN/``."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of a file is no fault of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _in_name(port: int) -> str:
    return "" if port == HTTP_PORT else f":{port}"


def _why_not(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; give another --port, or none for a free one"
    if error.errno == errno.EACCES:
        return "this user may not listen there; give a --port of 1024 or more, or none"
    return f"cannot be listened on ({error.strerror}); give another --port, or none"


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: ViewServer
    protocol_version = "HTTP/1.1"
    default_request_version = protocol_version  # for what does not say: it gets headers too
    server_version, sys_version = "moeprof", ""
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        """Answer with what the table has."""
        self._answer(is_head=False)

    def do_HEAD(self) -> None:
        """The same without the body."""
        self._answer(is_head=True)

    def _answer(self, *, is_head: bool) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self._refuse(*refusal)
            return
        found = self.server.table.get(self._name() or "")
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "not served here")
        elif isinstance(found.body, bytes):
            self._head(found, len(found.body))
            if not is_head:
                self.wfile.write(found.body)
        else:
            try:
                file, size_bytes = open_file(found.body)
            except OSError:
                self._refuse(HTTPStatus.NOT_FOUND, "the file is gone")
                return
            with file:
                self._head(found, size_bytes)
                if not is_head:
                    self._send(file, size_bytes)

    def _refusal(self) -> tuple[HTTPStatus, str] | None:
        """Why this request is not answered whatever it asks for; None where it is."""
        if self.headers.get_all("Host", []) not in [[name] for name in self.server.names]:
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                f"open http://{LOOPBACK}:{self.server.port} instead; through ssh, forward the "
                f"same port: ssh -L {self.server.port}:{LOOPBACK}:{self.server.port} HOST",
            )
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            return HTTPStatus.BAD_REQUEST, "a request has no body here"
        if self.headers.get("Origin", f"http://{self.headers['Host']}") not in (
            f"http://{name}" for name in self.server.names
        ):
            return HTTPStatus.FORBIDDEN, "not for pages of another origin"
        # a link that is clicked elsewhere may lead here; a script or an image there may not
        if self.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and (
            self.headers.get("Sec-Fetch-Mode") != "navigate"
            or self.headers.get("Sec-Fetch-Dest") != "document"
        ):
            return HTTPStatus.FORBIDDEN, "not for pages of another origin"
        return None

    def _name(self) -> str | None:
        """The path after the token, as it was sent; None where the token is not ours."""
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())
        return name if known and slash else None

    def _head(self, served: Served, size_bytes: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", served.content_type)
        self.send_header("Content-Length", str(size_bytes))
        self.send_header("Content-Security-Policy", served.rights)
        self.end_headers()

    def _send(self, file: BinaryIO, size_bytes: int) -> None:
        """The file as long as it was said to be: one that shrank meanwhile ends the connection."""
        left = size_bytes
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            self.wfile.write(piece)
            left -= len(piece)
        if left:
            self.close_connection = True

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        """One line of text, and no further request on this connection."""
        self.close_connection = True
        body = f"{status.value}: {why}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _read_only(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _read_only

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the request line or the headers made impossible, in our form."""
        status = HTTPStatus(code)
        self._refuse(status, message or status.phrase)

    def end_headers(self) -> None:
        """No answer without these."""
        for name, value in _EVERYWHERE.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""


# Which files may a browser read, under which paths and with which rights?
#
# A server is given a table and reads nothing else: a path is looked up as it was sent, undecoded,
# so no spelling of ``..`` can name a file that is not in the table.

# A page may load nothing from elsewhere, be framed by none, and send no form.
_CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
REPORT_RIGHTS = (
    f"{_CLOSED}; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""What a report needs: all of it is in the page."""
PAGE_RIGHTS = f"{_CLOSED}; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
"""What a page of ours needs that fetches the trace."""
DATA_RIGHTS = f"{_CLOSED}; sandbox"
"""What is no page needs nothing."""

HTML, SCRIPT, STYLE = "text/html; charset=utf-8", "text/javascript", "text/css"
BYTES = "application/octet-stream"


@dataclass(frozen=True)
class Served:
    """Something that can be read: `body` is the bytes themselves or the file that holds them."""

    body: bytes | Path
    content_type: str
    rights: str = DATA_RIGHTS


Table = Mapping[str, Served]
"""What is served, by its path after the token: ``report.html``, ``perfetto/index.html``."""


def open_file(path: Path) -> tuple[BinaryIO, int]:
    """A regular file and its size in bytes.

    Raises:
        OSError: it is not there, or is a link or something else than a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(path)
        return os.fdopen(descriptor, "rb"), found.st_size
    except BaseException:
        os.close(descriptor)
        raise
