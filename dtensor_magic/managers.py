"""Kernel managers of clients: jupyter_client's own, told how a client's process starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from .launchers.connection import AgentConnection
from .provisioner import ForkProvisioner

MODULE = "dtensor_magic.client"


class ClientManager(AsyncKernelManager):
    """Manages one client's kernel, whose channels are Unix sockets in the cluster's private folder.

    Parameters
    ----------
    folder : Path
        The cluster's folder.
    cluster : str
    client : int
    start_method : str
        ``fork``: our provisioner; ``exec``: jupyter_client's stock local one.
    agent : AgentConnection
        The agent that forks and holds the client.
    """

    def __init__(self, folder: Path, cluster: str, client: int, start_method: str, agent: AgentConnection) -> None:
        super().__init__(
            transport="ipc",
            ip=str(folder / f"c{client}"),
            connection_file=str(folder / f"c{client}.json"),
        )
        self.agent = agent
        self._cluster, self._client = cluster, client
        options: list[str] = []
        if start_method == "fork":
            provisioner = {
                "provisioner_name": "dtensor-magic",
                "config": {"cluster": cluster, "client": client},
            }
        else:
            provisioner = {"provisioner_name": "local-provisioner", "config": {}}
            # As ipykernel's own kernelspec has it, or the debugger warns at each start.
            options = ["-Xfrozen_modules=off"] if sys.version_info >= (3, 11) else []
        self._client_spec = KernelSpec(
            argv=[sys.executable, *options, "-m", MODULE, "-f", "{connection_file}"],
            display_name="DTensor client",
            language="python",
            metadata={"kernel_provisioner": provisioner},
        )

    def cleanup_connection_file(self) -> None:
        """Leave the file to the agent, which removes it with the cluster's folder.

        jupyter_client would remove it as soon as this object is collected, and nobody could attach to a cluster
        that was left running.
        """

    async def take_up(self, key: str, pid: int) -> None:
        """Manage a client that another process started."""
        self.load_connection_file()
        self.provisioner = ForkProvisioner(kernel_spec=self.kernel_spec, kernel_id=key, parent=self)
        info = {"kernel_id": key, "connection_info": self.get_connection_info()}
        await self.provisioner.load_provisioner_info(
            {**info, "pid": pid, "key": key, "cluster": self._cluster, "client": self._client}
        )

    @property
    def process(self) -> KernelProvisionerBase:
        """The provisioner, which stands for the kernel's process."""
        assert self.provisioner is not None
        return self.provisioner

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        # Both provisioners that we use have it; the base class does not.
        number: int = vars(self.process)["pid"]
        return number

    @property
    def kernel_spec(self) -> Any:
        """The client's kernelspec; it is in no folder."""
        return self._client_spec
