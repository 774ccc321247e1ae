"""Records: one per cluster, taken at once, stale ones known for what they are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from dtensor_magic.errors import SpecError
from dtensor_magic.records import (
    ClusterRecord,
    ProcessIdentity,
    find_record,
    free_name,
    live_records,
    records_folder,
    write_record,
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))


def record(name: str, agent: ProcessIdentity | None = None) -> ClusterRecord:
    me = ProcessIdentity.of(os.getpid())
    return ClusterRecord(name, agent or me, me, "/nowhere", 1.0, sys.executable)


def dead() -> ProcessIdentity:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    identity = ProcessIdentity.of(process.pid)
    process.wait()
    return identity


def test_a_record_is_read_as_it_was_written():
    write_record(record("a"))
    assert find_record("a") == record("a")


def test_a_name_is_taken_once():
    write_record(record("a"))
    with pytest.raises(SpecError, match="a cluster a is running already"):
        write_record(record("a"))


def test_the_name_of_a_dead_agents_cluster_is_free():
    write_record(record("a", dead()))
    assert live_records() == []
    write_record(record("a"))
    assert find_record("a") is not None


def test_a_later_process_with_the_same_pid_is_another():
    me = ProcessIdentity.of(os.getpid())
    assert me.alive()
    assert not ProcessIdentity(me.pid, me.started - 100).alive()


def test_names_count_up_past_those_in_use():
    assert free_name() == "dtensor-1"
    write_record(record("dtensor-1"))
    write_record(record("dtensor-3"))
    assert free_name() == "dtensor-2"


def test_what_is_not_understood_is_left_alone():
    path = records_folder() / "other.json"
    path.write_text('{"name": "other", "version": 9}')
    assert live_records() == []
    assert path.exists()


def test_a_record_of_another_host_is_left_alone():
    foreign = replace(record("far", dead()), host="another-host")
    path = write_record(foreign)
    assert live_records() == []
    assert path.exists()


def test_a_name_that_is_a_path_touches_no_file(tmp_path):
    target = tmp_path / "victim.json"
    target.write_text("{}")
    assert find_record(str(target.with_suffix(""))) is None
    assert find_record("../victim") is None
    assert target.exists()
