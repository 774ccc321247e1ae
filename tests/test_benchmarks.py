"""The benchmarks run: one small measurement of each, whose figure is nobody's business here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("way", ["warm", "by hand"])
def test_a_start_is_measured(way):
    command = [sys.executable, str(BENCHMARKS / "start.py"), "--one", way, "--clients", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr


def test_a_push_and_pulls_are_measured():
    options = ["--one", "dtensor_magic", "--clients", "2", "--megabytes", "1", "--repeat", "1"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "values.py"), *options], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["start", "cell", "recover", "panel", "values"])
def test_each_explains_its_options(name):
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--skip-ipyparallel" in done.stdout or name in ("cell", "panel")
