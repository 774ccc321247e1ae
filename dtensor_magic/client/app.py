"""The client's process: a kernel application that initialises DTensor before it takes its first message."""

from __future__ import annotations

import atexit
import faulthandler
import inspect
import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import IPython.core.history
from ipykernel.kernelapp import IPKernelApp
from traitlets import DottedObjectName, Type

from ..agent.protocol import call
from ..agent.status import StatusWriter
from ..state import Phase
from .context import ClientContext, take_orders
from .formatting import register_formatters
from .initialise import Initialised, initialise
from .kernel import DTensorKernel
from .lookout import Lookout
from .rendezvous import await_leader
from .threads import limit_threads
from .waiting import release_lock_while_waiting


class ClientApp(IPKernelApp):  # type: ignore[misc]
    """ipykernel's application with our kernel, and what a client needs set up before its first cell."""

    kernel_class = Type(
        DTensorKernel, klass="ipykernel.kernelbase.Kernel", help="The kernel that runs the client's cells."
    ).tag(config=True)

    outstream_class = DottedObjectName(
        "dtensor_magic.client.streams.ClientStream", help="The class of the client's output streams."
    ).tag(config=True)

    orders: ClientContext | None = None
    status: StatusWriter | None = None
    ready: Initialised | None = None

    def initialize(self, argv: Any = None) -> None:
        """Start the kernel and DTensor."""
        # A client's cells are the notebook's; a database of them per client would only cost time.
        IPython.core.history.HistoryManager.enabled = False
        super().initialize(argv)
        # traitlets has the logger make every debug record, for a handler that drops them: four per cell.
        self.log.setLevel(logging.WARNING)
        signal.signal(signal.SIGTERM, _leave)
        _register_cells(self.shell)
        if self.status is not None:
            self.kernel.lookout = Lookout(self.status)
        if self.orders is not None and self.ready is not None and self.status is not None:
            spec = self.orders.spec
            register_formatters(self.shell)
            self.shell.push(self.ready.names(spec.client_id, spec.num_clients), interactive=False)
            self.status.update(Phase.READY, devices=self.ready.device_facts())

    def init_io(self) -> None:
        """Initialise DTensor, and only then capture the output streams.

        What TensorFlow logs meanwhile belongs to no cell: it goes to the client's log.
        """
        if self.orders is not None and self.status is not None:
            self.ready = self._start_dtensor(self.orders, self.status)
        super().init_io()

    def log_connection_info(self) -> None:
        """Record the ports, without the hint to a terminal's user, who is not there."""
        level = self.trait_values()["log_level"]
        self.log_level = logging.CRITICAL
        super().log_connection_info()
        self.log_level = level

    def close(self) -> None:
        """Give the streams back, so that what runs at exit can print, and leave the rest to the process's end.

        ipykernel's own orderly closing can wait ten seconds for a stream whose thread it just stopped.
        """
        self.reset_io()

    def _start_dtensor(self, orders: ClientContext, status: StatusWriter) -> Initialised:
        status.update(Phase.INITIALISING)
        try:
            limit_threads(orders.spec.threads, orders.spec.cpus)
            release_lock_while_waiting()
            return initialise(orders.spec, before_call=lambda: _before_call(orders))
        except BaseException:
            status.update(Phase.FAILED, error=traceback.format_exc())
            raise


def _before_call(orders: ClientContext) -> None:
    """Let go of our port's reservation, and let the leader go first."""
    if orders.ports:
        call(orders.agent, "ports.release", ports=list(orders.ports))
    await_leader(orders.spec.jobs, orders.spec.client_id, orders.spec.options.timeout)


def _write_stacks_on_signal(path: Path) -> None:
    """Have SIGUSR2 write all threads' stacks to `path`, even where the interpreter is stuck in native code."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(signal.SIGUSR2, file=descriptor, all_threads=True)


def _register_cells(shell: Any) -> None:
    """Tell `inspect` which module each cell belongs to.

    A traceback asks it for every frame, and for a file that it does not know it looks through all modules, of which
    TensorFlow brings some thousands: 25 ms per frame, half a minute for an infinite recursion.
    """
    cache = shell.compile.cache

    def registered(*args: Any, **kwargs: Any) -> Any:
        name = cache(*args, **kwargs)
        inspect.modulesbyfile[name] = inspect.modulesbyfile[str(Path(name).absolute())] = "__main__"
        return name

    shell.compile.cache = registered


def _leave(*_: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> None:
    """Run a client until it is told to end.

    The process then leaves by ``os._exit``, after what was registered with `atexit`: TensorFlow's destructors
    would wait for peers that may be gone.
    """
    orders = take_orders()
    # ipykernel watches no file descriptors where pytest runs it, but a notebook under test is a notebook.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    code = 0
    try:
        app = ClientApp.instance()
        if orders is not None:
            app.orders = orders
            app.status = StatusWriter(orders.status)
            _write_stacks_on_signal(Path(orders.status).with_suffix(".stacks"))
            app.status.update(Phase.STARTING, pid=os.getpid())
        app.initialize(sys.argv[1:])
        app.start()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - it is on the status page and in the log; the exit code says the rest
        traceback.print_exc(file=sys.__stderr__)
        code = 1
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 - the same as the interpreter's own end does
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
        os._exit(code)
