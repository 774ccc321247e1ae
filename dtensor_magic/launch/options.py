"""The words of ``dtensor-magic launch``, ModelArts' start command among them.

ModelArts writes ``--task_index ${VC_TASK_INDEX} --PS_hosts ${TF_PS_HOSTS} --worker_hosts ${TF_WORKER_HOSTS}
--job_name ${MA_TASK_NAME} script.py ARGS``, and ``script.py ARGS`` on a single node. Options stand in any case,
with ``-`` or ``_``, with ``=`` or a blank; what follows the script is the script's own.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import SpecError
from ..jobs import check_port
from ..parsing import parse_time, parse_whole
from ..platforms import modelarts

Strategy = Literal["dtensor", "parameter-server"]

#: ModelArts' options, and the variables that it expands in them.
MODELARTS = {
    "--task-index": "VC_TASK_INDEX",
    "--ps-hosts": "TF_PS_HOSTS",
    "--worker-hosts": "TF_WORKER_HOSTS",
    "--job-name": "MA_TASK_NAME",
}

_UNEXPANDED = re.compile(r"\$\{?\w+\}?")


@dataclass(frozen=True)
class LaunchOptions:
    """What a user asks a launch for.

    Attributes
    ----------
    script : Path
    arguments : tuple of str
        The script's own.
    clients : int
        Clients on this node, or of this node's part of a job.
    ps : int
        Parameter servers on this node, where it is a job of its own.
    device_type : str or None
        None for the preferred one.
    platform : str or None
        Whose variables say what part of a job this is; None for those that are there.
    task : mapping of str to str
        ModelArts' options, under the names of the variables that they come from; empty where there are none.
    strategy : str or None
        ``dtensor`` or ``parameter-server``; None to look into the script.
    timeout : float
        Seconds to wait for the other parts of the job.
    grace : float or None
        Seconds that processes may take to end before they are killed; None for 30 after a signal, as Kubernetes
        and Slurm have it, and 3 after a failure.
    control_port : int or None
        Where the parts of a job meet; None for one that follows from the first client's.
    logs : Path or None
        A folder for a log file per process.
    limit_memory : bool
        Hold each process to its share of the memory.
    plan : bool
        Show what each process would get, and start nothing.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    clients: int = 1
    ps: int = 0
    device_type: str | None = None
    platform: str | None = None
    task: Mapping[str, str] | None = None
    strategy: Strategy | None = None
    timeout: float = 600.0
    grace: float | None = None
    control_port: int | None = None
    logs: Path | None = None
    limit_memory: bool = False
    plan: bool = False


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of what stands before the script."""
    parser = argparse.ArgumentParser(
        prog="dtensor-magic launch",
        usage="dtensor-magic launch [options] script.py [ARGS]",
        description="Run the DTensor clients of a script on this node, or this node's part of a job.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--clients", default="1", metavar="N", help="clients on this node, or of its part of a job (1)")
    add("--ps", default="0", metavar="K", help="parameter servers on this node, where it is a job of its own (0)")
    add("--device", metavar="TYPE", help="CPU, GPU or TPU: the accelerators to divide (the preferred one)")
    add(
        "--from",
        dest="platform",
        metavar="PLATFORM",
        help="whose variables to read; those that are there without it",
    )
    add(
        "--strategy", choices=["dtensor", "parameter-server"], help="what the job uses; the script tells without it"
    )
    add("--timeout", metavar="S", help="seconds to wait for the other parts of the job (600)")
    add(
        "--grace",
        metavar="S",
        help="seconds before what should end is killed (30 after a signal, 3 after a failure)",
    )
    add("--control-port", metavar="P", help="where the parts of a job meet (the first client's port and 10000)")
    add("--logs", metavar="DIR", help="a folder for a log file per process")
    add("--limit-memory", action="store_true", help="hold each process to its share of the memory (RLIMIT_DATA)")
    add("--plan", action="store_true", help="show what each process would get, and start nothing")
    modelarts_form = parser.add_argument_group("ModelArts' start command")
    for option, variable in MODELARTS.items():
        modelarts_form.add_argument(option, metavar=f"${{{variable}}}", help=f"from {variable}")
    return parser


def parse(words: Sequence[str]) -> LaunchOptions:
    """Read the words behind ``launch``.

    Raises
    ------
    SpecError
        One line on what is wrong and what is right.
    """
    parser = make_parser()
    own, rest = _split(words, parser)
    options = parser.parse_args(own)
    if not rest:
        raise SpecError("launch: there is no script; write dtensor-magic launch [options] script.py [ARGS].")
    script = Path(rest[0])
    if not script.is_file():
        raise SpecError(f"launch: there is no script {rest[0]} in {Path.cwd()}.")
    return LaunchOptions(
        script=script,
        arguments=tuple(rest[1:]),
        clients=parse_whole(options.clients, "clients", "a client count; it is 1 or more") or 1,
        ps=parse_whole(options.ps, "ps", "a count of parameter servers", least=0) or 0,
        device_type=options.device,
        platform=options.platform,
        task=_task(options),
        strategy=options.strategy,
        timeout=parse_time(options.timeout) or 600.0,
        grace=parse_time(options.grace, "grace"),
        control_port=check_port(options.control_port, where="control port") if options.control_port else None,
        logs=Path(options.logs) if options.logs else None,
        limit_memory=options.limit_memory,
        plan=options.plan,
    )


def _split(words: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Split the words into options, in their one spelling, and the script with its arguments."""
    known = {name: action for action in parser._actions for name in action.option_strings}  # noqa: SLF001
    own: list[str] = []
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        word, equals, value = words[position].partition("=")
        name = word if word in known else word.lower().replace("_", "-")
        position += 1
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            hint = f"did you mean {near[0]}?" if near else "the script's own options stand behind it."
            raise SpecError(f"launch: unknown option {word}; {hint}")
        own.append(name)
        if known[name].nargs == 0:
            if equals:
                raise SpecError(f"launch: {word} takes no value.")
            continue
        if not equals:
            value = words[position] if position < len(words) else ""
            position += 1
        _check_value(word, name, value, missing=not equals and value.partition("=")[0].lower() in _spellings(known))
        choices = known[name].choices
        if choices is not None and value not in choices:
            raise SpecError(f"launch: {word} is {' or '.join(choices)}, not {value!r}.")
        # In one word, since a value may begin with a dash.
        own[-1] = f"{name}={value}" if name.startswith("--") else f"{name}{value}"
    return own, list(words[position:])


def _spellings(known: Mapping[str, object]) -> set[str]:
    return {spelling for name in known for spelling in (name, name[:2] + name[2:].replace("-", "_"))}


def _check_value(word: str, name: str, value: str, *, missing: bool) -> None:
    variable = MODELARTS.get(name)
    if missing or not value.strip() or value.strip() == "[]":
        if variable is None:
            raise SpecError(f"launch: {word} needs a value.")
        unneeded = " Leave the option out, if the job has no parameter servers." if name == "--ps-hosts" else ""
        raise SpecError(f"launch: {word} has no value: {variable} is empty or not set here.{unneeded}")
    if _UNEXPANDED.search(value):
        raise SpecError(
            f"launch: {word} {value} was not expanded; have a shell run the command, or give the value."
        )
    if name == "--job-name":
        # Before anything else is read: where MA_TASK_NAME is empty, this is the script.
        modelarts.task_role(value, f"launch: {word} (from MA_TASK_NAME)")


def _task(options: argparse.Namespace) -> dict[str, str] | None:
    """Return ModelArts' options as its variables."""
    given = {
        variable: value
        for option, variable in MODELARTS.items()
        if (value := getattr(options, option[2:].replace("-", "_"))) is not None
    }
    if not given:
        return None
    for option, variable in MODELARTS.items():
        if variable not in given and option != "--ps-hosts":
            raise SpecError(f"launch: {option.replace('-', '_').replace('__', '--')} is missing beside the others.")
    if options.platform is not None:
        raise SpecError("launch: --from and the options of ModelArts' start command exclude each other.")
    return given
