"""``python -m dtensor_magic.agent FOLDER OWNER_PID OWNER_STARTED``: one host agent, on its standard input.

Standard input is a socket whose other end is the owner's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from ..records import ProcessIdentity
from .supervisor import Supervisor


def main() -> None:
    """Run the agent."""
    folder, pid, started = sys.argv[1:]
    owner = ProcessIdentity(int(pid), float(started))
    connection = socket.socket(fileno=os.dup(0))
    asyncio.run(Supervisor(Path(folder), owner).serve(connection))


main()
