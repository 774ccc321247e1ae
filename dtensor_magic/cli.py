"""``dtensor-magic launch | list | stop | plan``: jobs, the clusters of this user, and this node, from a shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from ._version import __version__
from .agent.protocol import call
from .devices import known_device_type
from .errors import AgentError, DTensorMagicError, SpecError
from .launch import run as launch
from .records import ClusterRecord, find_record, live_records, no_such_cluster
from .resources import checked_counts, divide, this_node
from .state import ClusterState, to_json
from .views import text
from .views.resources import resource_table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="dtensor-magic", description="DTensor clusters of this user")
    parser.add_argument("--version", action="version", version=f"dtensor-magic {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="show the clusters that run")
    listing.add_argument("--json", action="store_true", help="as JSON, one object per cluster")
    stopping = commands.add_parser("stop", help="end clusters")
    stopping.add_argument("name", nargs="*", help="the clusters' names")
    stopping.add_argument("--all", action="store_true", help="end all of them")
    commands.add_parser("launch", add_help=False, help="run the clients of a script, or this node's part of a job")
    planning = commands.add_parser("plan", help="show what each process on this node would get")
    planning.add_argument(
        "device_type", nargs="?", metavar="DEVICE_TYPE", help="CPU, GPU or TPU (the preferred one)"
    )
    planning.add_argument("-n", "--clients", type=int, default=1, help="clients on this node (1)")
    planning.add_argument("--ps", type=int, default=0, help="parameter servers on this node (0)")
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if words[:1] == ["launch"]:
            # What stands behind the script is the script's own, and none of argparse's.
            return launch.main(words[1:])
        options = parser.parse_args(words)
        if options.command == "plan":
            return _plan(options.device_type, options.clients, options.ps)
        if options.command == "list":
            return _list(as_json=options.json)
        return _stop(options.name, everything=options.all)
    except DTensorMagicError as error:
        print(f"dtensor-magic: {error}", file=sys.stderr)
        return 1


def _plan(device_type: str | None, clients: int, ps: int) -> int:
    print(resource_table(divide(this_node(known_device_type(device_type)), *checked_counts(clients, ps))))
    return 0


def _list(*, as_json: bool) -> int:
    states = [state for record in live_records() if (state := _state(record)) is not None]
    if as_json:
        print(json.dumps([to_json(state) for state in states], indent=2))
    elif states:
        print("\n\n".join(text.card(state) for state in states))
    else:
        print("no cluster runs.")
    return 0


def _state(record: ClusterRecord) -> ClusterState | None:
    try:
        return ClusterState.from_json(call(record.socket, "clusters.state", name=record.name))
    except AgentError as error:
        print(f"dtensor-magic: {record.name}: {error}", file=sys.stderr)
        return None


def _stop(names: Sequence[str], *, everything: bool) -> int:
    if everything == bool(names):
        raise SpecError("stop: name the clusters to end, or say --all (dtensor-magic list shows them).")
    records = live_records() if everything else [_named(name) for name in names]
    for record in records:
        call(record.socket, "clusters.close", name=record.name, by="dtensor-magic stop")
        print(f"ended: {record.name}")
    if not records:
        print("no cluster runs.")
    return 0


def _named(name: str) -> ClusterRecord:
    record = find_record(name)
    if record is None:
        raise SpecError(f"stop: {no_such_cluster(name)}")
    return record


if __name__ == "__main__":
    sys.exit(main())
