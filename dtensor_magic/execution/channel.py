"""One client's kernel connection, on the driver's loop.

Plain ZMQ sockets with the loop's readers, and Jupyter's own `Session` for the messages: a cell on eight clients is
forty messages, so what each one costs here is what a cell costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Mapping
from typing import Any

import zmq
from jupyter_client.session import Session

#: Called with a channel's name (``shell``, ``iopub`` or ``control``) and the message.
Receiver = Callable[[str, Mapping[str, Any]], None]

#: Milliseconds between two tries to connect to a kernel that has not opened its sockets yet.
_RECONNECT_MS = 20

#: Seconds after which the question "are you there" is asked again.
_ASK_AGAIN = 0.5

_KINDS = {"shell": zmq.DEALER, "control": zmq.DEALER, "iopub": zmq.SUB}


class ClientChannel:
    """Shell, control and iopub of one kernel.

    Parameters
    ----------
    info : mapping
        The kernel's connection info.
    receiver : callable
        Gets every message that :meth:`ready` and :meth:`ask` do not wait for.
    """

    def __init__(self, info: Mapping[str, Any], receiver: Receiver) -> None:
        key = info["key"]
        self.session = Session(
            key=key if isinstance(key, bytes) else key.encode(), signature_scheme=info["signature_scheme"]
        )
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._heard: dict[str, asyncio.Event] = {}
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        for name, kind in _KINDS.items():
            socket = context.socket(kind)
            socket.linger = 0
            socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
            socket.set(zmq.RCVHWM, 0)
            if kind == zmq.SUB:
                socket.subscribe(b"")
            else:
                socket.set(zmq.IDENTITY, self.session.bsession)
            socket.connect(_address(info, info[f"{name}_port"]))
            self._sockets[name] = socket
            # In no cell's context: what comes late is shown under the cell that is the last one then.
            contextvars.Context().run(self._loop.add_reader, socket.FD, self._drain, name)

    def _drain(self, name: str) -> None:
        """Take in all that is there: ZMQ's file descriptor tells of the first message only."""
        socket = self._sockets.get(name)
        while socket is not None and not socket.closed:
            try:
                received: Any = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            _, frames = self.session.feed_identities(received)
            self._take(name, self.session.deserialize(frames))

    def _take(self, name: str, message: Mapping[str, Any]) -> None:
        parent = message["parent_header"].get("msg_id", "")
        if name == "iopub":
            heard = self._heard.get(parent)
            if heard is not None:
                heard.set()
                return
        else:
            answer = self._answers.pop(parent, None)
            if answer is not None:
                if not answer.done():
                    answer.set_result(message)
                return
        self._receiver(name, message)

    def send(self, name: str, kind: str, content: Mapping[str, Any], metadata: dict[str, Any] | None = None) -> str:
        """Send a request on channel `name` and return its message id."""
        message: Any = self.session.send(self._sockets[name], kind, dict(content), metadata=metadata)
        # Sending may have used up the file descriptor's edge.
        self._loop.call_soon(self._drain, name, context=contextvars.Context())
        identity: str = message["header"]["msg_id"]
        return identity

    async def ask(self, name: str, kind: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return its reply's content."""
        identity = self.send(name, kind, content)
        answer: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()
        self._answers[identity] = answer
        try:
            reply = await answer
        finally:
            self._answers.pop(identity, None)
        found: Mapping[str, Any] = reply["content"]
        return found

    async def ready(self) -> None:
        """Return when the kernel answers on its shell, and its output reaches us."""
        heard = asyncio.Event()
        answered = asyncio.Event()
        asked: list[str] = []
        try:
            while not (heard.is_set() and answered.is_set()):
                identity = self.send("shell", "kernel_info_request", {})
                asked.append(identity)
                self._heard[identity] = heard
                answer = self._answers[identity] = self._loop.create_future()
                answer.add_done_callback(lambda _: answered.set())
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_both(heard, answered), _ASK_AGAIN)
        finally:
            for identity in asked:
                self._heard.pop(identity, None)
                self._answers.pop(identity, None)

    async def alive(self) -> None:
        """Return when the kernel answers on its control channel, which it does while a cell runs too."""
        await self.ask("control", "kernel_info_request", {})

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets.values():
            self._loop.remove_reader(socket.FD)
            socket.close()
        self._sockets.clear()


async def _both(one: asyncio.Event, other: asyncio.Event) -> None:
    await one.wait()
    await other.wait()


def _address(info: Mapping[str, Any], port: int) -> str:
    separator = "-" if info["transport"] == "ipc" else ":"
    return f"{info['transport']}://{info['ip']}{separator}{port}"
