"""HEAD wherever GET is (RFC 9110, section 9.3.2): the request is answered as GET, without its body.

The application sees a GET, so that status and headers are the same and no endpoint can forget it.
"""

from __future__ import annotations

from app.http.types import Application, Message, Receive, Scope, Send


async def answer_head(application: Application, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a HEAD request by the response to GET.

    The response is complete with its headers: an endless one ends there, as if the client had left.
    """
    is_complete = False

    async def send_head(message: Message) -> None:
        nonlocal is_complete
        if message["type"] == "http.response.start":
            await send(message)
            is_complete = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive_until_complete() -> Message:
        return {"type": "http.disconnect"} if is_complete else await receive()

    await application({**scope, "method": "GET"}, receive_until_complete, send_head)
