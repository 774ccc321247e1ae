"""Load the extension into an IPython shell, and take it out again."""

from __future__ import annotations

from typing import Any

from .client.context import current_client
from .cluster import registry
from .completion import register_completers, unregister_completers
from .errors import DTensorMagicError
from .launchers.local import local_agent, stop_agent
from .magics import DTensorMagics
from .picture_magics import PictureMagics
from .value_magics import ValueMagics

#: All our magics, in classes by what they are for.
MAGICS = (DTensorMagics, PictureMagics, ValueMagics)


def load(shell: Any) -> None:
    """Register the magics with `shell`, and warm the template up."""
    for kind in MAGICS:
        shell.register_magics(kind(shell))
    register_completers(shell)
    magics = shell.magics_manager.registry[DTensorMagics.__name__]
    # A client that loads the extension, from a profile for instance, starts no agent of its own.
    if magics.prewarm and current_client() is None:
        try:
            local_agent().warm()
        except (OSError, DTensorMagicError) as error:
            print(f"dtensor_magic: the background template could not be started ({error}); starts will be slower.")


def unload(shell: Any) -> None:
    """End the clusters and the agent, and take the magics away."""
    for cluster in registry.all():
        cluster.shutdown()
    stop_agent()
    for kind in MAGICS:
        magics = shell.magics_manager.registry.pop(kind.__name__, None)
        if magics is None:
            continue
        if isinstance(magics, PictureMagics):
            magics.close()
        for how, names in magics.magics.items():
            for name in names:
                shell.magics_manager.magics[how].pop(name, None)
        if magics in shell.configurables:
            shell.configurables.remove(magics)
    unregister_completers(shell)
