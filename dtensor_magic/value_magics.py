"""The magics that bring values to the clients and back."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from .cluster import Cluster
from .errors import SpecError
from .gathering import Pulled
from .magic_lines import find_cluster, name_argument, parse_line
from .notebook import NotebookCluster
from .parsing import parse_clients
from .per_client import PerClient
from .state import name_clients
from .views.text import size


@magics_class
class ValueMagics(Magics):  # type: ignore[misc]
    """``%dtensor_push`` and ``%dtensor_pull``."""

    @magic_arguments()
    @argument("names", nargs="*", metavar="NAMES", help="variables of the notebook: w,b")
    @argument("--on", metavar="0,2-3", help="the clients to bring them to; all without it")
    @name_argument()
    @line_magic
    def dtensor_push(self, line: str) -> None:
        """Bring values of the notebook to the clients, under the same names.

        Arrays and tensors are in memory once per host, however many clients have them.
        """
        options = parse_line(self.dtensor_push, line)
        cluster = find_cluster(options.name)
        names = cluster.check_names(split_names(options.names))
        on = cluster.check_clients(parse_clients(options.on) if options.on else None)
        missing = [name for name in names if name not in self.shell.user_ns]
        if missing:
            raise SpecError(f"%dtensor_push: there is no {', '.join(missing)} in this notebook.")
        if isinstance(cluster, NotebookCluster):
            print(f"{', '.join(names)}: here already; the client is this notebook itself.")
            return
        cluster.push({name: self.shell.user_ns[name] for name in names}, on)
        for name in names:
            print(f"pushed {name}: {describe(self.shell.user_ns[name])}, to {name_clients(on)}")

    @magic_arguments()
    @argument("names", nargs="*", metavar="NAMES", help="variables of the clients: w,b")
    @argument("--on", metavar="I", help="the clients to bring them from; all without it")
    @argument("--as", dest="target", metavar="NAME", help="what to call the value in the notebook")
    @name_argument()
    @line_magic
    def dtensor_pull(self, line: str) -> None:
        """Bring values of the clients to the notebook, under the same names.

        A DTensor comes as its global array; a value that differs between clients as a PerClient, by client id.
        """
        options = parse_line(self.dtensor_pull, line)
        cluster = find_cluster(options.name)
        names = cluster.check_names(split_names(options.names))
        if options.target is not None and (len(names) > 1 or not _bindable(options.target)):
            raise SpecError("%dtensor_pull: --as takes one name, for one value.")
        collect(self.shell, cluster, names, parse_clients(options.on) if options.on else None, options.target)


def collect(
    shell: Any, cluster: Cluster, names: Sequence[str], on: Sequence[int] | None, target: str | None = None
) -> None:
    """Bind what the clients hold in the notebook, and say what came."""
    for name, pulled in cluster.fetch(names, on).items():
        called = target or name
        if isinstance(cluster, NotebookCluster) and called == name:
            # The same namespace: an array would take the DTensor's place.
            stays = "its DTensor stays as it is; --as NAME gives the global array a name" if pulled.layout else ""
            print(f"{name}: here already; the client is this notebook itself{'; ' * bool(stays)}{stays}.")
            continue
        shell.push({called: pulled.value}, interactive=False)
        print(f"pulled {name}{f' as {target}' if target else ''}: {origin(pulled)}")


def _bindable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def split_names(words: Sequence[str]) -> list[str]:
    """Read names, with commas, blanks or both between them."""
    return [name for word in words for name in word.split(",") if name]


def origin(pulled: Pulled) -> str:
    """Say what a pull brought, and from where."""
    value = pulled.value
    if isinstance(value, PerClient):
        text = f"differs, a PerClient of {len(value.groups)} values by client id: {describe(value.groups[0][1])}"
    else:
        text = describe(value)
    layout = pulled.layout
    if layout is not None:
        dims = ", ".join(f"{name}={count}" for name, count in layout.mesh)
        text += f", of shards [{', '.join(layout.specs)}] on {dims}"
    dead = f" ({name_clients(pulled.dead)} {'is' if len(pulled.dead) == 1 else 'are'} dead)" if pulled.dead else ""
    return f"{text}, from {name_clients(pulled.clients)}{dead}"


def describe(value: Any) -> str:
    """Say what a value is: ``array (8, 4) float32, 128 B``."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        kind = "array" if type(value) is np.ndarray else kind
        return f"{kind} {value.shape} {value.dtype}, {size(value.nbytes)}"
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(value, (tf.Tensor, tf.Variable)):
        count = value.dtype.size * int(np.prod(value.shape.as_list())) if value.shape.is_fully_defined() else None
        kind = "tf.Variable" if isinstance(value, tf.Variable) else "tf.Tensor"
        return f"{kind} {tuple(value.shape)} {value.dtype.name}, {size(count)}"
    if isinstance(value, (str, bytes, list, tuple, set, frozenset, Mapping)):
        return f"{kind} of {len(value)}"
    return kind
