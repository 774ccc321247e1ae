"""What this process was told, when it is a client. Empty in a notebook kernel."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from ..plan import ClientSpec

#: The variable that carries a client's orders, as JSON, into its process.
VARIABLE = "DTENSOR_MAGIC_CLIENT"


@dataclass(frozen=True)
class ClientContext:
    """A client's orders.

    Attributes
    ----------
    cluster : str
        The cluster's name.
    spec : ClientSpec
    status : str
        Path of the status page to write.
    agent : str
        Path of the agent's control socket.
    ports : tuple of int
        Ports that the agent holds for this client until it asks.
    """

    cluster: str
    spec: ClientSpec
    status: str
    agent: str
    ports: tuple[int, ...]

    def to_text(self) -> str:
        """Return the orders as the variable's text."""
        data: dict[str, Any] = {**self.__dict__, "spec": self.spec.to_json()}
        return json.dumps(data)


_current: ClientContext | None = None


def take_orders() -> ClientContext | None:
    """Read the orders from the environment, and remove them there: they are not for what a client starts."""
    global _current  # noqa: PLW0603 - one per process is the point
    text = os.environ.pop(VARIABLE, None)
    if text is not None:
        data = json.loads(text)
        data["spec"] = ClientSpec.from_json(data["spec"])
        data["ports"] = tuple(data["ports"])
        _current = ClientContext(**data)
    return _current


def current_client() -> ClientContext | None:
    """Return this process's orders, or None where it is no client."""
    return _current
