"""Drive a panel's widgets as a front end does: by comm messages over a kernel's own channels."""

from __future__ import annotations

import time
from typing import Any

from notebooks import execute

_PANEL = "get_ipython().magics_manager.registry['PictureMagics']._panel"

_WIDGETS = {
    "box": "panel.box",
    "start": "panel._start",
    "stop": "panel._stop",
    "interrupt": "panel._interrupt",
    "restart": "panel._restart",
    **{name: f"panel.form.fields['{name}']" for name in ("device_type", "clients", "mesh", "more")},
}


class PanelWidgets:
    """The panel of the kernel behind a blocking client.

    Parameters
    ----------
    client : KernelClient
        `%dtensor_panel` has run.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        pairs = ", ".join(f"'{name}': {widget}.comm.comm_id" for name, widget in _WIDGETS.items())
        _, text = execute(client, f"panel = {_PANEL}\nprint({{{pairs}}})")
        self._ids: dict[str, str] = eval(text)

    def _send(self, name: str, data: dict[str, Any]) -> None:
        content = {"comm_id": self._ids[name], "data": data}
        self._client.shell_channel.send(self._client.session.msg("comm_msg", content))

    def set(self, name: str, **state: Any) -> None:
        """Change a widget's state, as typing in it does."""
        self._send(name, {"method": "update", "state": state, "buffer_paths": []})

    def click(self, name: str) -> None:
        """Click a button."""
        self._send(name, {"method": "custom", "content": {"event": "click"}})

    def wait(self, text: str, timeout: float = 30.0) -> float:
        """Wait until a widget shows `text`; return the time on the monotonic clock."""
        deadline = time.monotonic() + timeout
        seen = []
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=0.5)
            except Exception:  # noqa: BLE001 - the queue's own Empty
                continue
            state = message["content"].get("data", {}).get("state", {}) if message["msg_type"] == "comm_msg" else {}
            if text in str(state.get("value", "")):
                return time.monotonic()
            seen.append(str(state.get("value", ""))[:100])
        raise AssertionError(f"{text!r} was not shown within {timeout} s, but {[one for one in seen if one]}")
