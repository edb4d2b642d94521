"""The client of the command line against a server whose answers are written down."""

from __future__ import annotations

import socket

import pytest

from app.commands.output import CommandFailed
from app.commands.remote import ServerProblem, connect


def test_a_problem_is_told_with_field_row_and_column(written):
    problem = {
        "code": "invalid_dataset",
        "title": "Bad",
        "detail": "The data set cannot be used.",
        "request_id": "r1",
        "errors": [
            {"field": "X", "row": 3, "column": 2, "message": "not finite"},
            {"message": "something else"},
        ],
    }
    written.on("GET", "/v1/whoami", problem, 422)
    with connect(written.address, None) as server, pytest.raises(ServerProblem) as caught:
        server.whoami()
    assert caught.value.message == "The data set cannot be used. (HTTP 422, invalid_dataset, request r1)"
    assert caught.value.details == ("X, row 3, column 2: not finite", "something else")
    assert (caught.value.status, caught.value.code) == (422, "invalid_dataset")


def test_a_fault_that_the_message_has_is_not_said_again(written):
    said, other = "The table has no column 'x'.", "model: The name of a model is short."
    problem = {
        "code": "no_label_column",
        "detail": f"{said} (2 faults are listed.)",
        "errors": [{"field": "label_column", "message": said}, {"field": "model", "message": other}],
    }
    written.on("GET", "/v1/whoami", problem, 400)
    with connect(written.address, None) as server, pytest.raises(ServerProblem) as caught:
        server.whoami()
    assert caught.value.details == (other,)


@pytest.mark.parametrize(
    ("body", "shown"), [(b"<html>busy</html>", "<html>busy</html>"), (["odd"], "odd"), ({}, "gave no reason")]
)
def test_an_error_that_is_no_problem_document_is_shown_as_it_is(written, body, shown):
    written.on("GET", "/v1/whoami", body, 503)
    with connect(written.address, None) as server, pytest.raises(ServerProblem, match="HTTP 503") as caught:
        server.whoami()
    assert shown in caught.value.message


def test_the_key_goes_with_every_request(written):
    written.on("POST", "/v1/keys/key_1/rotate", {"ok": True})
    with connect(written.address, "stms_key") as server:
        assert server.rotate_key("key_1", overlap_seconds=1.0) == {"ok": True}
        assert server.address == written.address
    assert written.requests[0].headers["Authorization"] == "Bearer stms_key"
    assert written.requests[0].json == {"overlap_seconds": 1.0}


def test_an_answer_without_content_is_nothing(written):
    written.on("DELETE", "/v1/webhooks/wh_1", None, 204)
    with connect(written.address, None) as server:
        assert server.delete_webhook("wh_1") is None


def test_lists_are_read_page_after_page_as_the_server_links_them(written):
    written.on(
        "GET", "/items", {"data": [{"id": 1}], "has_more": True}, Link='</items?after=1&limit=1>; rel="next"'
    )
    written.on("GET", "/items", {"data": [{"id": 2}], "has_more": False})
    with connect(written.address, None) as server:
        assert [item["id"] for item in server.pages("/items", limit=1, status=None)] == [1, 2]
    assert [request.path for request in written.requests] == ["/items?limit=1", "/items?after=1&limit=1"]


def test_nobody_listening_is_told_with_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            connect(address, None) as server,
            pytest.raises(CommandFailed, match="No server answers") as caught,
        ):
            server.whoami()
    assert "stms serve" in caught.value.details[0]


def test_a_connection_that_breaks_off_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with connect(address, None) as server:
            import threading

            def hang_up() -> None:
                accepted, _ = listener.accept()
                accepted.recv(1000)
                accepted.close()

            thread = threading.Thread(target=hang_up)
            thread.start()
            with pytest.raises(CommandFailed, match="broke off"):
                server.whoami()
            thread.join()


@pytest.mark.parametrize("address", ["http://[::1", "http://a:b:c"])
def test_an_address_that_is_none_is_told(address):
    with pytest.raises(CommandFailed, match="not an address"), connect(address, None):
        pass


def test_an_address_without_a_scheme_is_told():
    with pytest.raises(CommandFailed, match="must begin with http"), connect("127.0.0.1", None):
        pass


def test_what_is_not_text_is_told_before_anything_is_sent(written):
    with connect(written.address, None) as server, pytest.raises(CommandFailed, match="must be valid text"):
        server.webhook("\ud800")
    assert written.requests == []


def test_a_list_tells_errors_of_its_later_pages(written):
    following = '</v1/keys?after=1>; rel="next"'
    written.on("GET", "/v1/keys", {"data": [{"id": "key_1"}], "has_more": True}, Link=following)
    written.on("GET", "/v1/keys", {"code": "overloaded", "detail": "Later."}, 503)
    with connect(written.address, None) as server:
        keys = server.api_keys()
        assert next(keys)["id"] == "key_1"
        with pytest.raises(ServerProblem, match="Later"):
            next(keys)


def test_the_server_is_asked_to_fetch_a_data_set(run, written):
    fetched = {"id": "ds_1", "name": "letters", "digest": "d", "rows": 6, "test_rows": 0, "columns": 2}
    fetched |= {"classes": ["a"], "classes_truncated": False, "source_format": "csv", "size_bytes": 9}
    written.on("POST", "/v1/datasets:fetch", fetched | {"created_at": "2026-01-02T03:04:05Z", "reading": []})
    arguments = ("https://bucket/a.csv", "--name", "letters", "--format", "csv", "--header", "no")
    result = run("datasets", "fetch", *arguments, STMS_URL=written.address)
    assert result.exit_code == 0, result.output
    assert "6 to train" in result.stdout
    assert written.requests[0].json == {
        "url": "https://bucket/a.csv",
        "name": "letters",
        "format": "csv",
        "reading": {"header": "no"},
    }
