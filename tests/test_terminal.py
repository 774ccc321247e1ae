"""IPython in a terminal: the same magics, with progress on one line and Ctrl-C."""

from __future__ import annotations

import os
import re
import sys

import pexpect
import psutil
import pytest
from conftest import gone, wait_for

PROMPT = r"In \[\d+\]: "


@pytest.fixture
def terminal():
    command = [
        "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--no-confirm-exit",
        "--HistoryManager.enabled=False",
    ]  # fmt: skip
    child = pexpect.spawn(
        sys.executable,
        command,
        encoding="utf-8",
        timeout=60,
        dimensions=(50, 160),
        env={**os.environ, "TERM": "dumb"},
    )
    child.expect(PROMPT)
    yield child
    child.close(force=True)


def run(terminal, line: str) -> str:
    terminal.sendline(line)
    terminal.expect(PROMPT)
    return terminal.before


def test_start_shows_phases_on_one_line_and_cells_run(terminal):
    run(terminal, "%load_ext dtensor_magic")
    shown = run(terminal, "%dtensor_init CPU -n 2 --mesh x=2")
    # Each state goes over the one before it.
    assert re.search(r"\rdtensor-1: .*(starting|initialising)", shown)
    assert "\rdtensor-1: 2 CPU clients ready in" in shown
    assert "0       ✓ ready" in shown
    assert "[0-1] 2" in run(terminal, "%dtensor print(num_clients)")
    assert "UsageError: device type 'XPU' is unknown" in run(terminal, "%dtensor_init XPU")
    assert "ended: dtensor-1" in run(terminal, "%dtensor_shutdown")


def test_ctrl_c_interrupts_the_clients(terminal):
    run(terminal, "%load_ext dtensor_magic")
    run(terminal, "%dtensor_init CPU -n 2")
    terminal.sendline("%dtensor import time; print('begun', flush=True); time.sleep(60)")
    terminal.expect("begun\r\n")
    terminal.sendintr()
    terminal.expect("clients 0-1 were interrupted", timeout=10)
    terminal.expect(PROMPT)
    assert "[0-1] on" in run(terminal, "%dtensor print('on')")


def test_leaving_the_terminal_leaves_nothing(terminal):
    run(terminal, "%load_ext dtensor_magic")
    run(terminal, "%dtensor_init CPU -n 2")
    pids = [child.pid for child in psutil.Process(terminal.pid).children(recursive=True)]
    assert len(pids) >= 4
    terminal.sendline("exit")
    terminal.expect(pexpect.EOF)
    wait_for(lambda: gone(pids))


def test_pictures_are_text_of_eighty_columns_and_the_panel_says_what_to_use(terminal):
    run(terminal, "%load_ext dtensor_magic")
    run(terminal, "%dtensor_init CPU -n 2 --mesh x=2")
    run(terminal, "%dtensor w = dtensor.call_with_layout(tf.ones, dtensor.Layout(['x'], mesh), shape=(4,))")
    for line, shows in (
        ("%dtensor_mesh", "│ client 1"),
        ("%dtensor_layout w", "8 B on each of 2 devices"),
        ("%dtensor_variables", "EagerTensor  (4)    float32  [x]"),
        ("%dtensor_timeline", "w = dtensor.call_with_layout"),
    ):
        shown = run(terminal, line)
        assert shows in shown
        assert max(map(len, shown.splitlines())) <= 80
    assert "the panel needs a notebook; here %dtensor_status" in run(terminal, "%dtensor_panel")
