"""Commands that are made of methods of the client: what they send, print, and say of their options."""

from __future__ import annotations

import pytest

from app.commands.methods import made
from stms_client import Client

WEBHOOK = "/v1/webhooks/wh_1"


def test_a_command_sends_what_the_method_sends_and_no_default_of_its_own(run, written):
    details = {"id": "wh_1"}
    written.on("POST", "/v1/webhooks", {"secret": "whsec_1", "details": details}, 201)
    create = ("webhooks", "create", "builds", "https://hooks.example.com/")
    shown = run(*create, STMS_URL=written.address)
    assert shown.stdout.splitlines() == ["Webhook wh_1. Its secret is shown only once:", "whsec_1"]
    with Client(written.address) as client:
        client.create_webhook("builds", "https://hooks.example.com/")
    command, method = written.requests
    assert command.json == method.json
    assert "events" not in command.json, "that all are sent is the API's default"
    run(*create, "--event", "job.failed", "--event", "alias.moved", "--model", "m", STMS_URL=written.address)
    assert (written.requests[-1].json["events"], written.requests[-1].json["models"]) == (
        ["job.failed", "alias.moved"],
        ["m"],
    )


def test_what_is_not_named_is_not_sent(run, written):
    written.on("PATCH", WEBHOOK, {})
    for option, sent in (("--enable", {"enabled": True}), ("--disable", {"enabled": False})):
        assert run("webhooks", "change", "wh_1", option, STMS_URL=written.address).exit_code == 0
        assert written.requests[-1].json == sent


def test_a_sentence_shows_arguments_as_they_are(run, written):
    written.on("DELETE", "/v1/webhooks/%5Bred%5D", None, 204)
    shown = run("webhooks", "delete", "[red]", STMS_URL=written.address)
    assert shown.stdout == "Webhook [red] is deleted.\n"


def test_a_list_ends_after_the_largest_number_of_rows(run, written):
    rows = [{"id": number, "label": f"class {number}"} for number in range(5)]
    written.on("GET", "/v1/models/m/versions/latest/classes", {"data": rows, "has_more": False})
    shown = run("models", "classes", "m", "--limit", "2", "--after", "7", STMS_URL=written.address).stdout
    assert "class 1" in shown
    assert "class 2" not in shown
    assert written.requests[0].path.endswith("?limit=1000&after=7")


@pytest.mark.parametrize(
    ("method", "help_"),
    [
        (
            Client.create_webhook,
            "Create a webhook. Its `secret`, which verifies what it sends, is shown only here.",
        ),
        (Client.point_alias, "Point an alias to a version."),
        (Client.jobs, "All jobs, newest first."),
    ],
)
def test_the_help_is_the_first_paragraph_of_the_docstring_without_its_errors(method, help_):
    assert made(method).__doc__ == help_


def test_the_help_of_an_option_is_what_the_docstring_says_of_the_parameter(run):
    shown = " ".join(run("jobs", "list", "--help").stdout.split())
    assert "--state <str> Only jobs in this state, such as running." in shown
    assert "--created-by <str> Only jobs of this API key, by its id." in shown
