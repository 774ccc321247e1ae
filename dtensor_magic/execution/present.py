"""Show folded output in the notebook: as ordinary output, labelled by client."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from ..state import client_ranges
from .fold import Piece

_REDRAW = re.compile(r"\r(?=[^\r\n])")


class Presenter:
    """Writes pieces to this process's own streams and displays.

    Parameters
    ----------
    cluster : str
        The cluster's name; with the client it keeps display ids of different clients apart.
    clients : tuple of int
        All that take part.
    labelled : bool
        Whether to say which client something came from.
    """

    def __init__(self, cluster: str, clients: tuple[int, ...], *, labelled: bool) -> None:
        self._cluster = cluster
        self._clients = clients
        self._labelled = labelled
        # The line that was begun and not ended: its stream and clients.
        self._open: tuple[str, tuple[int, ...]] | None = None
        self._pending: list[str] = []
        self._stream = "stdout"

    def show(self, pieces: list[Piece]) -> None:
        """Show `pieces`."""
        for piece in pieces:
            if piece.content is None:
                self._text(piece)
            else:
                self._write_out()
                self._rich(piece, piece.content)
        self._write_out()

    def notice(self, text: str) -> None:
        """Say something of our own, on the error stream."""
        self._end_line()
        self._write("stderr", f"dtensor_magic: {text}\n")
        self._write_out()

    def finish(self) -> None:
        """End a line that was left open, so that what comes next starts its own."""
        if self._labelled:
            self._end_line()
            self._write_out()

    def _write(self, stream: str, text: str) -> None:
        if stream != self._stream:
            self._write_out()
            self._stream = stream
        self._pending.append(text)

    def _write_out(self) -> None:
        if self._pending:
            target = sys.stderr if self._stream == "stderr" else sys.stdout
            target.write("".join(self._pending))
            target.flush()
            self._pending.clear()

    def _label(self, clients: tuple[int, ...]) -> str:
        return f"[{client_ranges(clients)}] " if self._labelled else ""

    def _text(self, piece: Piece) -> None:
        label = self._label(piece.clients)
        text = piece.text
        if self._open != (piece.kind, piece.clients):
            self._end_line()
            # Nothing stands before a new line that a leading carriage return could go back over.
            text = label + (text.removeprefix("\r") if label else text)
        if label:
            # A bar that redraws its line gets its label again, which it would wipe out.
            text = _REDRAW.sub(lambda _: "\r" + label, text)
        self._write(piece.kind, text)
        self._open = None if piece.text.endswith("\n") else (piece.kind, piece.clients)

    def _end_line(self) -> None:
        if self._open is not None:
            if self._labelled:
                self._write(self._open[0], "\n")
            self._open = None

    def _rich(self, piece: Piece, content: Mapping[str, Any]) -> None:
        self._end_line()
        if piece.kind == "clear_output":
            # One client's wish must not wipe out what others said.
            if piece.clients == self._clients and self._in_ipython():
                self._write_out()
                from IPython.display import clear_output

                clear_output(wait=content.get("wait", False))
            return
        label = self._label(piece.clients)
        data = content.get("data", {})
        if label and piece.kind == "execute_result" and set(data) == {"text/plain"}:
            # A value that is text stands beside its label, or below it where it has several lines.
            text = data["text/plain"]
            self._write("stdout", (label.rstrip() + "\n" if "\n" in text else label) + text + "\n")
            return
        transient = dict(content.get("transient") or {})
        if "display_id" in transient:
            transient["display_id"] = f"{self._cluster}-{piece.clients[0]}-{transient['display_id']}"
        update = piece.kind == "update_display_data"
        if label and not update:
            self._write("stdout", label.rstrip() + "\n")
        self._write_out()
        metadata = {**content.get("metadata", {}), "dtensor": {"clients": list(piece.clients)}}
        if self._in_ipython():
            from IPython.core.getipython import get_ipython

            publish = get_ipython().display_pub.publish
            publish(data=dict(data), metadata=metadata, transient=transient, update=update)
        elif not update:
            sys.stdout.write(data.get("text/plain", "") + "\n")

    @staticmethod
    def _in_ipython() -> bool:
        if "IPython" not in sys.modules:
            return False
        from IPython.core.getipython import get_ipython

        return get_ipython() is not None
