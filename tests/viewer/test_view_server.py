"""The server of `moeprof view`, asked over real sockets as a browser and as an attacker would."""

import http.client
import io
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from moeprof.errors import ViewError
from moeprof.viewer.server import BYTES, HTML, REPORT_RIGHTS, Served, ViewServer
from moeprof.viewer.table import pages_in, table_of

SECRET = "the private key of the user"


class Answer:
    """What came back: status, headers by small name, body."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}


def send(server: ViewServer, raw: bytes) -> Answer:
    """These bytes on a connection of their own, and all that is answered."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        return Answer(b"".join(iter(lambda: connection.recv(65536), b"")))


def ask(server: ViewServer, path: str, method: str = "GET", **headers: str | None) -> Answer:
    """One request for an absolute path; a header of None is left out."""
    sent = {"Host": f"127.0.0.1:{server.port}", **headers}
    lines = [f"{k.replace('_', '-')}: {v}" for k, v in sent.items() if v is not None]
    request = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "Connection: close", "", ""])
    return send(server, request.encode("latin-1"))


@pytest.fixture
def server(tmp_path):
    """A report and a trace of a run folder; beside it a file that nobody may read."""
    (tmp_path / "run").mkdir()
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "run" / "meta.json").write_text(SECRET)
    (tmp_path / "run" / "report.html").write_text("<p>the report")
    (tmp_path / "run" / "run.pftrace").write_bytes(bytes(range(256)) * 4096)
    run = tmp_path / "run"
    with ViewServer() as made:
        made.table = table_of(run / "report.html", run / "run.pftrace", {})
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_the_report_is_there_with_its_rights(server):
    answer = ask(server, f"/{server.token}/report.html")
    assert (answer.status, answer.body) == (200, b"<p>the report")
    assert answer.headers["content-type"] == HTML
    assert answer.headers["content-security-policy"] == REPORT_RIGHTS
    assert "frame-ancestors 'none'" in REPORT_RIGHTS


def test_a_head_has_the_length_and_no_body(server):
    answer = ask(server, f"/{server.token}/run.pftrace", "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == str(256 * 4096)


def test_every_answer_keeps_other_origins_out(server):
    for path in (f"/{server.token}/report.html", f"/{server.token}/nosuch", "/"):
        headers = ask(server, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == "same-origin-allow-popups"
        assert headers["cache-control"] == "no-store"
        assert not [name for name in headers if name.startswith("access-control")]


def test_only_this_machine_is_listened_to(server):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/../../../../../../../../etc/passwd",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e%2fsecret.txt",
        "/%252e%252e/secret.txt",
        "/..\\secret.txt",
        "/..%5csecret.txt",
        "/.%00./secret.txt",
        "/report.html%00.txt",
        "/report.html\x00",
        "/meta.json",
        "/./report.html",
        "//report.html",
        "/perfetto/../report.html",
        "/report.html/",
        "/report%2ehtml",
        "/",
        "",
        "/\xff\xfe",
    ],
)
def test_nothing_but_the_table_is_read(server, path):
    for before in (f"/{server.token}", "", f"/{server.token}/x", f"/x/{server.token}"):
        answer = ask(server, before + path or "/")
        assert answer.status == 404, before + path
        assert SECRET.encode() not in answer.body


@pytest.mark.parametrize(
    "path", ["{secret}", "file://{secret}", "http://127.0.0.1:{port}/{token}/report.html"]
)
def test_an_absolute_path_is_none_of_the_table(server, tmp_path, path):
    secret = str(tmp_path / "secret.txt")
    answer = ask(server, path.format(secret=secret, port=server.port, token=server.token))
    assert answer.status == 404


def test_without_the_token_there_is_nothing(server):
    wrong = ("x" * len(server.token), server.token[:-1], server.token + "x", server.token.upper())
    for token in wrong:
        assert ask(server, f"/{token}/report.html").status == 404
    assert ask(server, "/report.html").status == 404
    assert len(server.token) >= 22  # 128 bits in base64


def test_each_server_has_a_token_of_its_own(server):
    with ViewServer() as other:
        assert other.token != server.token


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(server, method):
    answer = ask(server, f"/{server.token}/report.html", method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.headers["connection"] == "close"


def test_a_method_that_http_has_not_is_refused(server):
    assert ask(server, f"/{server.token}/report.html", "STEAL").status == 501


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", None, "[::1]"]
)
def test_a_page_that_points_its_own_name_here_is_refused(server, host):
    """DNS rebinding: the browser takes our answers for that page's own."""
    host = host and host.format(port=server.port)
    answer = ask(server, f"/{server.token}/report.html", Host=host)
    assert answer.status == 421
    assert f"ssh -L {server.port}:127.0.0.1:{server.port}".encode() in answer.body
    assert b"the report" not in answer.body


def test_two_hosts_are_one_too_many(server):
    name = f"Host: 127.0.0.1:{server.port}\r\n"
    answer = send(server, f"GET /{server.token}/report.html HTTP/1.1\r\n{name}{name}\r\n".encode())
    assert answer.status == 421


def test_localhost_is_this_machine_too(server):
    host = f"localhost:{server.port}"
    assert ask(server, f"/{server.token}/report.html", Host=host).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://ui.perfetto.dev"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"}, 403),
        (
            {
                "Sec_Fetch_Site": "cross-site",
                "Sec_Fetch_Mode": "navigate",
                "Sec_Fetch_Dest": "iframe",
            },
            403,
        ),
        (
            {
                "Sec_Fetch_Site": "cross-site",
                "Sec_Fetch_Mode": "navigate",
                "Sec_Fetch_Dest": "document",
            },
            200,
        ),
        ({"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"}, 200),
        ({"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate"}, 200),
    ],
)
def test_scripts_of_other_origins_are_refused(server, headers, status):
    answer = ask(server, f"/{server.token}/run.pftrace", **headers)
    assert answer.status == status
    assert (len(answer.body) == 256 * 4096) == (status == 200)


def test_a_request_with_a_body_is_refused_and_the_body_is_no_request(server):
    inner = f"GET /{server.token}/report.html HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
    head = f"GET /{server.token}/report.html HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    for length in (f"Content-Length: {len(inner)}", "Transfer-Encoding: chunked"):
        answer = send(server, f"{head}{length}\r\n\r\n{inner}".encode())
        assert answer.status == 400
        assert b"HTTP/1.1" not in answer.body


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_what_is_no_request_is_answered_so(server, raw, status):
    assert send(server, raw).status == status
    assert ask(server, f"/{server.token}/report.html").status == 200


def test_one_connection_carries_several_requests(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with closing(connection):
        for method, length in (("GET", 13), ("HEAD", 0), ("GET", 13)):
            connection.request(method, f"/{server.token}/report.html")
            assert len(connection.getresponse().read()) == length


@pytest.mark.parametrize(("meanwhile", "kept"), [(b"longer", b"long"), (b"lo", b"lo")])
def test_a_file_that_changes_as_it_is_sent_is_as_long_as_was_said(
    server, monkeypatch, meanwhile, kept
):
    """Four bytes were promised: more would be read as the next answer, fewer end the connection."""

    def opened(path):
        return io.BytesIO(meanwhile), 4

    monkeypatch.setattr("moeprof.viewer.server.open_file", opened)
    answer = ask(server, f"/{server.token}/report.html")
    assert (answer.headers["content-length"], answer.body) == ("4", kept)


def test_the_network_is_not_asked_for_a_name_of_this_machine(monkeypatch):
    for name in ("getfqdn", "gethostbyaddr", "getaddrinfo"):
        monkeypatch.setattr(socket, name, lambda *_: pytest.fail("asked for a name"))
    with ViewServer() as made:
        assert made.server_name == "127.0.0.1"


def test_requests_at_once_each_get_the_whole(server):
    with ThreadPoolExecutor(16) as pool:
        paths = [f"/{server.token}/run.pftrace"] * 64
        answers = list(pool.map(lambda path: ask(server, path), paths))
    assert {answer.status for answer in answers} == {200}
    assert {answer.body for answer in answers} == {bytes(range(256)) * 4096}


def test_one_that_says_nothing_keeps_nobody_waiting(server):
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, f"/{server.token}/report.html").status == 200


def test_one_that_leaves_early_is_no_news(server, capsys):
    big = b"x" * 50_000_000
    server.table = {"big": Served(big, BYTES)}
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        host = f"Host: 127.0.0.1:{server.port}\r\n\r\n"
        connection.sendall(f"GET /{server.token}/big HTTP/1.1\r\n{host}".encode())
        connection.recv(10)
    assert ask(server, f"/{server.token}/big").body == big
    assert capsys.readouterr().err == ""


def test_a_file_that_becomes_a_link_is_not_followed(server, tmp_path):
    report = tmp_path / "run" / "report.html"
    for target in (tmp_path / "secret.txt", tmp_path / "run", tmp_path / "nosuch"):
        report.unlink()
        report.symlink_to(target)
        answer = ask(server, f"/{server.token}/report.html")
        assert (answer.status, SECRET.encode() in answer.body) == (404, False)


def test_what_is_no_file_is_not_waited_for(server, tmp_path):
    report = tmp_path / "run" / "report.html"
    report.unlink()
    os.mkfifo(report)
    assert ask(server, f"/{server.token}/report.html").status == 404


def test_links_in_the_viewer_lead_nowhere(tmp_path):
    folder = tmp_path / "pages"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<script>start()</script>")
    (folder / "assets" / "a.js").write_text("a")
    (folder / "assets" / "run me").write_text("no page has a name like this")
    (folder / "service_worker.js").write_text("stays when we are gone")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.js").write_text(SECRET)
    (folder / "file.js").symlink_to(outside / "b.js")
    (folder / "folder").symlink_to(outside)
    pages = pages_in(folder)
    assert sorted(pages) == ["perfetto/", "perfetto/assets/a.js", "perfetto/index.html"]
    # printf 'start()' | openssl dgst -sha256 -binary | base64
    rights = pages["perfetto/"].rights
    assert "'sha256-DIm7WJS6ZKDYe5qFLPy+h4JFI9Bol5QmYC57mt3Fb00='" in rights
    assert "'unsafe-inline'" not in rights.partition("style-src")[0]


def test_no_viewer_no_pages(tmp_path):
    assert pages_in(tmp_path) == {}


def test_a_port_that_is_taken_is_told_in_one_line(server):
    with pytest.raises(ViewError, match=rf"^port {server.port}: another program listens there"):
        ViewServer(server.port)
