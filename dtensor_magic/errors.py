"""What can go wrong: one base class, and a class per thing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from IPython.core.error import UsageError

from .state import name_clients

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class DTensorMagicError(Exception):
    """Base of all errors that dtensor_magic raises.

    IPython shows the message alone: where in our code it was raised is no help to a user.

    Attributes
    ----------
    hint : str
        What the user should do next, where there is something to do.
    """

    hint = ""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}", *([self.hint] if self.hint else [])]


class SpecError(DTensorMagicError, UsageError):  # type: ignore[misc]  # IPython carries no types
    """What was asked for cannot be. The message is one line: what was wrong, and what is right.

    It is a ``UsageError`` of IPython's too.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"UsageError: {self}"]


class NameTakenError(SpecError):
    """Another cluster has the name."""


class NoTensorFlowError(SpecError):
    """This Python environment has no TensorFlow."""


class ContextLiveError(SpecError):
    """TensorFlow is already initialised in this process, so DTensor cannot be."""


class StartError(DTensorMagicError):
    """A cluster did not come up.

    Attributes
    ----------
    client : int or None
        The client that failed first, where one did.
    detail : str
        What that client said: its traceback, or its last log lines.
    missing : tuple of str
        Peers that did not come up in time.
    """

    def __init__(
        self, message: str, *, client: int | None = None, detail: str = "", missing: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.client = client
        self.detail = detail
        self.missing = tuple(missing)

    def _render_traceback_(self) -> list[str]:
        lines = super()._render_traceback_()
        return [*lines, "", *self.detail.rstrip().splitlines()] if self.detail else lines


class AgentError(DTensorMagicError):
    """The host agent is gone, or refused a request."""


class ClusterStateError(SpecError):
    """The cluster is not in a state that allows what was asked: stopped, failed, or busy."""


class CellError(DTensorMagicError):
    """A cell raised on one client or more. IPython shows the client's own traceback.

    Attributes
    ----------
    cluster : str
        The cluster's name.
    clients : tuple of int
        The clients that raised this same error first.
    ename, evalue : str
        The remote exception's class name and text.
    remote_traceback : list of str
        The remote traceback, as the client's IPython rendered it.
    others : dict of int to str
        What came of the clients that failed otherwise, by client.
    """

    def __init__(
        self,
        cluster: str,
        clients: Sequence[int],
        ename: str,
        evalue: str,
        remote_traceback: Sequence[str],
        others: dict[int, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.clients = tuple(clients)
        self.ename = ename
        self.evalue = evalue
        self.remote_traceback = list(remote_traceback)
        self.others = dict(others or {})
        super().__init__(f"{name_clients(self.clients)} of {cluster}: {ename}: {evalue}")
        if hasattr(self, "add_note"):
            # A plain Python prompt shows notes; IPython asks for what is below.
            self.add_note("\n".join(_ANSI.sub("", part) for part in self.remote_traceback))

    def _render_traceback_(self) -> list[str]:
        head = f"\x1b[1m{name_clients(self.clients)} of {self.cluster} raised:\x1b[0m"
        tail = [describe_outcomes(self.others)] if self.others else []
        tail += [self.hint] if self.hint else []
        body = [line for part in self.remote_traceback for line in part.split("\n")]
        return [head, *body, *tail]


class ClientDiedError(DTensorMagicError):
    """A client's process ended while it was needed.

    Attributes
    ----------
    client : int
    exit_text : str
        How it ended, in words: ``killed by SIGKILL``, ``exited with code 3``.
    log_tail : str
        Its last log lines.
    """

    def __init__(self, cluster: str, client: int, exit_text: str, *, where: str = "", log_tail: str = "") -> None:
        self.cluster = cluster
        self.client = client
        self.exit_text = exit_text
        self.log_tail = log_tail
        place = f" {where}" if where else ""
        super().__init__(f"client {client} of {cluster} {exit_text}{place}. Its own shards and values are gone.")

    def _render_traceback_(self) -> list[str]:
        lines = super()._render_traceback_()
        if self.log_tail:
            lines += ["", f"The end of client {self.client}'s log:", *self.log_tail.rstrip().splitlines()]
        return lines


class KeepError(DTensorMagicError):
    """A client could not write its variables down for a restart, which therefore did not take place.

    Attributes
    ----------
    client : int
    reason : str
    """

    def __init__(self, cluster: str, client: int, reason: str) -> None:
        self.client = client
        self.reason = reason
        first = reason.strip().partition("\n")[0]
        super().__init__(
            f"client {client} of {cluster} could not save its variables ({first}); nothing was restarted. "
            "Keep fewer names, or restart without --keep."
        )


class TransferError(DTensorMagicError):
    """A value could not be brought to the clients, or from them. The message is one line.

    Attributes
    ----------
    name : str
        The value's; several are separated by commas.
    """

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)


class CellTimeoutError(DTensorMagicError):
    """A cell ran longer than its ``--timeout``; the clients that had not finished were interrupted.

    Attributes
    ----------
    clients : tuple of int
        The clients that had not finished.
    timeout : float
        Seconds.
    """

    def __init__(self, cluster: str, clients: Sequence[int], timeout: float) -> None:
        self.cluster = cluster
        self.clients = tuple(clients)
        self.timeout = timeout
        verb = "was" if len(self.clients) == 1 else "were"
        super().__init__(
            f"{name_clients(self.clients)} of {cluster} had not finished after {timeout:g} s and {verb} interrupted"
        )


class ClientsInterruptedError(DTensorMagicError, KeyboardInterrupt):
    """The user interrupted a cell. Says for each client what came of it.

    Attributes
    ----------
    outcomes : dict of int to str
        What came of each client.
    """

    def __init__(self, cluster: str, outcomes: dict[int, str]) -> None:
        self.cluster = cluster
        self.outcomes = dict(outcomes)
        super().__init__(f"interrupted on {cluster}: {describe_outcomes(self.outcomes)}")


def describe_outcomes(outcomes: dict[int, str]) -> str:
    """Say alike outcomes once: ``clients 0, 2-3 were interrupted; client 1 had finished``."""
    by_text: dict[str, list[int]] = {}
    for client, text in sorted(outcomes.items()):
        by_text.setdefault(text, []).append(client)
    parts = []
    for text, clients in by_text.items():
        several = len(clients) > 1
        words = "were " + text.removeprefix("was ") if several and text.startswith("was ") else text
        parts.append(f"{name_clients(clients)} {words}")
    return "; ".join(parts)
