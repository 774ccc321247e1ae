"""The one seam between "a client" and "how its process starts": a ``jupyter_client`` kernel provisioner.

Registered as ``dtensor-magic``; any kernel manager that uses a kernelspec naming it gets its kernel as a fork of
this process's template, in a fraction of a second instead of an import of TensorFlow. What a kernel manager can do
with a local kernel it can do with such a one.
"""

from __future__ import annotations

import inspect
import os
import pathlib
import signal
from typing import Any
from uuid import uuid4

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from traitlets import Integer, Unicode

from .errors import AgentError
from .launchers.connection import AgentConnection
from .launchers.local import local_agent, python_path


class ForkProvisioner(KernelProvisionerBase):
    """Starts kernels by forking this process's template.

    The kernel command must be ``python -m MODULE ARGS``; it runs in this Python environment.
    """

    cluster = Unicode(
        None, allow_none=True, help="The cluster that the kernel is a client of; none for a kernel by itself."
    ).tag(config=True)
    client = Integer(None, allow_none=True, help="The kernel's client id in that cluster.").tag(config=True)

    _key: str | None = None
    _agent: AgentConnection | None = None
    pid: int | None = None

    @property
    def has_process(self) -> bool:
        """Whether a process is being managed."""
        return self._key is not None

    def _own_agent(self) -> AgentConnection:
        """Return the agent that the manager names, or else this process's own."""
        agent: AgentConnection = getattr(self.parent, "agent", None) or local_agent()
        return agent

    async def _request(self, method: str, **params: Any) -> Any:
        assert self._agent is not None
        return await self._agent.request(method, **params)

    async def poll(self) -> int | None:
        """Return None while the kernel runs, else its exit code (negative: the signal)."""
        if self._key is None:
            return 0
        if self._agent is None or not self._agent.alive:
            # Clients die with their supervisor.
            return -signal.SIGKILL
        answer = await self._request("kernels.poll", key=self._key)
        code: int | None = answer["code"] if answer["ended"] else None
        return code

    async def wait(self) -> int | None:
        """Wait until the kernel's process has ended; return its exit code."""
        if self._key is None:
            return 0
        try:
            answer = await self._request("kernels.wait", key=self._key)
        except AgentError:
            self._key = None
            return -signal.SIGKILL
        self._key = None
        code: int | None = answer["code"]
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel and the processes that it started."""
        if self._key is not None:
            await self._request("kernels.signal", key=self._key, signum=int(signum))

    async def kill(self, restart: bool = False) -> None:  # noqa: ARG002
        """Send SIGKILL."""
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:  # noqa: ARG002
        """Send SIGTERM."""
        await self.send_signal(signal.SIGTERM)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Write the connection file (the same ports on a restart) and the kernel's command."""
        manager = self.parent
        arguments = kwargs.pop("extra_arguments", [])
        if manager is not None:
            session_name = kwargs.get("env", {}).get("JPY_SESSION_NAME", "")
            # jupyter_client 7 takes no session name.
            takes_name = session_name and inspect.signature(manager.write_connection_file).parameters
            manager.write_connection_file(**({"jupyter_session": session_name} if takes_name else {}))
            self.connection_info = manager.get_connection_info()
            command = manager.format_kernel_cmd(extra_arguments=arguments)
        else:
            command = [*self.kernel_spec.argv, *arguments]
        return await super().pre_launch(cmd=command, **kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Fork the kernel.

        Raises
        ------
        AgentError
            If the command is not ``python -m MODULE ARGS``, or the agent cannot fork.
        """
        module, arguments = _module_of(cmd)
        self._agent = self._own_agent()
        key = self.kernel_id or uuid4().hex
        self._cwd = str(kwargs.get("cwd") or pathlib.Path.cwd())
        self.pid = await self._request(
            "kernels.fork",
            key=key,
            module=module,
            args=arguments,
            env=dict(kwargs.get("env") or os.environ),
            cwd=self._cwd,
            path=python_path(),
            cluster=self.cluster,
            client=self.client,
        )
        self._key = key
        return self.connection_info

    async def cleanup(self, restart: bool = False) -> None:
        """Drop what the agent keeps about the process."""
        if not restart and self._agent is not None and self._agent.alive and self.cluster is None:
            await self._request("kernels.forget", key=self.kernel_id)

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return what another process needs to manage this kernel."""
        info = await super().get_provisioner_info()
        info.update(pid=self.pid, key=self._key, cluster=self.cluster, client=self.client)
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Take up what :meth:`get_provisioner_info` returned, in the process that started the kernel."""
        await super().load_provisioner_info(provisioner_info)
        self.pid = provisioner_info["pid"]
        self._key = provisioner_info["key"]
        self.cluster = provisioner_info["cluster"]
        self.client = provisioner_info["client"]
        self._agent = self._own_agent()
        self._cwd = str(pathlib.Path.cwd())

    def resolve_path(self, path: str) -> str | None:
        """Return `path` as seen from the kernel's working folder, if it exists there."""
        resolved = (pathlib.Path(self._cwd) / pathlib.Path(path).expanduser()).resolve()
        return str(resolved) if resolved.exists() else None


def _module_of(command: list[str]) -> tuple[str, list[str]]:
    """Split ``python [options] -m MODULE ARGS`` into module and arguments."""
    try:
        place = command.index("-m")
        return command[place + 1], command[place + 2 :]
    except (ValueError, IndexError):
        raise AgentError(
            f"the fork provisioner runs python -m MODULE, but the kernel command is: {' '.join(command)}"
        ) from None
