"""The magics: thin words over `Cluster`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from traitlets import Bool, Enum, Float, Integer, Unicode, observe

from .cluster import OUTPUT_MODES, Cluster, registry, start_cluster
from .errors import DTensorMagicError, SpecError, describe_outcomes
from .handles import CellHandle
from .magic_lines import NO_CLUSTER, find_cluster, name_argument, parse_line
from .parsing import parse_clients, parse_env, parse_names, parse_time, parse_whole, split_cell_options
from .records import live_records
from .spec import ClusterSpec
from .state import client_ranges
from .value_magics import collect, split_names
from .views.progress import StartProgress
from .views.resources import resource_table


@magics_class
class DTensorMagics(Magics):  # type: ignore[misc]
    """The magics and their defaults (``%config DTensorMagics``)."""

    prewarm = Bool(True, help="Import TensorFlow in a background template as soon as the extension loads.").tag(
        config=True
    )
    device_type = Unicode("", help="Device type of %dtensor_init; empty for the preferred one.").tag(config=True)
    clients = Integer(0, help="Client count of %dtensor_init; 0 for local mode.").tag(config=True)
    logical_cpus = Integer(0, help="Logical CPUs per client; 0 for TensorFlow's own choice.").tag(config=True)
    start_method = Enum(["fork", "exec"], "fork", help="How clients start.").tag(config=True)
    start_timeout = Float(60.0, help="Seconds that clients may take to come up.").tag(config=True)
    output = Enum(list(OUTPUT_MODES), "fold", help="How %%dtensor shows the clients' output.").tag(config=True)
    cell_timeout = Float(0.0, help="Seconds that a cell may run; 0 for no limit.").tag(config=True)
    lease = Float(0.0, help="Minutes that background clients live on when the notebook is gone.").tag(config=True)
    fail_grace = Float(
        1.0, help="Seconds after a client's failure before peers that wait for it in a collective are released."
    ).tag(config=True)
    auto_rebuild = Bool(
        False, help="When a cell leaves the collectives closed, restart the clients with all variables at once."
    ).tag(config=True)

    @observe("prewarm")
    def _prewarm_changed(self, change: dict[str, Any]) -> None:
        from .launchers import local

        if change["new"]:
            local.local_agent().warm()
        elif not registry.all():
            local.stop_agent()

    # --- start and stop

    @magic_arguments()
    @argument("device_type", nargs="?", metavar="DEVICE_TYPE", help="CPU, GPU or TPU, in any case")
    @argument("-n", "--clients", help="client count; 2 or more are background kernels in multi-client mode")
    @argument("--background", action="store_true", help="one background client instead of the notebook kernel")
    @argument("--here", action="store_true", help="the notebook kernel is itself a client")
    @argument("--logical-cpus", metavar="K", help="logical CPU devices per client")
    @argument("--megcore", action="store_true", help="experimental_enable_megcore (TPU)")
    @argument("--reset-context", action="store_true", help="experimental_reset_context: drop a live context")
    @argument("--no-coordination-service", action="store_true", help="enable_coordination_service=False")
    @argument("--jobs", metavar="H:P,H:P", help="DTENSOR_JOBS: the address of each client")
    @argument("--client-id", metavar="I", help="DTENSOR_CLIENT_ID of the notebook kernel")
    @argument("--job-name", metavar="NAME", help="DTENSOR_JOB_NAME")
    @argument("--parallel-executor", metavar="pw", help="DTENSOR_USE_PARALLEL_EXECUTOR")
    @argument(
        "--from",
        dest="platform",
        metavar="PLATFORM",
        help="whose variables say what job the notebook kernel is a client of; without it those that are there",
    )
    @argument("--mesh", metavar="batch=4,model=2", help="create that mesh on every client, as the name mesh")
    @argument("--env", metavar="K=V", action="append", help="a variable for the clients; may be repeated")
    @argument("--timeout", metavar="S", help="seconds that clients may take to come up")
    @argument("--plan", action="store_true", help="start nothing; show what each client would get")
    @argument("--name", help="the cluster's name")
    @argument("--start-method", metavar="fork|exec", help="how clients start")
    @argument("--isolate", action="store_true", help="a network namespace of the clients' own")
    @argument("--lease", metavar="MIN", help="minutes that the clients live on when the notebook is gone")
    @line_magic
    def dtensor_init(self, line: str) -> Cluster | None:
        """Initialise DTensor, and return the cluster.

        One client is local mode, in the notebook kernel itself; two or more (-n) are background kernels.
        """
        spec = self.spec_of(line)
        if parse_line(self.dtensor_init, line).plan:
            print(resource_table(spec.plan(os.environ).resources))
            return None
        before = registry.all()
        cluster = self._with_progress(lambda progress: start_cluster(spec, os.environ, progress.update))
        for warning in cluster.plan.warnings:
            print(f"Note: {warning}")
        others = [other for other in before if other is not cluster and other.alive]
        if others and cluster not in before:
            names = ", ".join(repr(other)[1:-1] for other in others)
            print(f"Also running: {names}. %dtensor_shutdown --name NAME ends one; cells go to {cluster.name}.")
        return cluster

    def spec_of(self, line: str) -> ClusterSpec:
        """Read a line of ``%dtensor_init``.

        Raises
        ------
        SpecError
            One line: what was wrong, and what is right.
        """
        options = parse_line(self.dtensor_init, line)
        return ClusterSpec(
            device_type=options.device_type or self.device_type or None,
            clients=parse_whole(options.clients, "clients", "a client count; it is 1 or more")
            or (self.clients or None if not (options.background or options.here) else None),
            background=options.background,
            here=options.here,
            logical_cpus=parse_whole(options.logical_cpus, "logical CPUs", "a count; it is 1 or more per client")
            or self.logical_cpus
            or None,
            megcore=options.megcore,
            reset_context=options.reset_context,
            coordination_service=not options.no_coordination_service,
            jobs=options.jobs,
            client_id=parse_whole(options.client_id, "client id", "a whole number", least=None),
            job_name=options.job_name,
            parallel_executor=options.parallel_executor,
            platform=options.platform,
            mesh=options.mesh,
            env=parse_env(options.env or ()),
            timeout=parse_time(options.timeout) or self.start_timeout,
            name=options.name,
            start_method=options.start_method or self.start_method,
            isolate=options.isolate,
            lease=parse_time(options.lease, "lease", "minutes") or self._default_lease(options),
        )

    @staticmethod
    def _with_progress(start: Callable[[StartProgress], Cluster], *, restarted: bool = False) -> Cluster:
        progress = StartProgress()
        began = time.monotonic()
        known = registry.all()
        try:
            cluster = start(progress)
        except BaseException:
            progress.abandon()
            raise
        seconds = time.monotonic() - began
        count = len(cluster.clients)
        what = f"{count} {cluster.device_type} client{'s' * (count != 1)}"
        how = "already running" if cluster in known and not restarted else f"ready in {seconds:.1f} s"
        progress.finish(f"{cluster.name}: {what} {how}")
        return cluster

    @magic_arguments()
    @argument("-n", "--clients", help="another client count")
    @argument("--mesh", metavar="batch=4,model=2", help="another mesh")
    @argument(
        "--keep", metavar="NAMES|all", help="variables to bring over: w,b or all; DTensors with their layouts"
    )
    @argument("--replay", action="store_true", help="run the cells marked --setup again; --keep does too")
    @name_argument()
    @line_magic
    def dtensor_restart(self, line: str) -> Cluster:
        """Replace the clients by new ones, with the same options but for those given here.

        Variables are lost, but for those that --keep names. DTensors come back with the same bits and layouts, or
        laid out over another mesh; what cannot be kept is told with the reason.
        """
        options = parse_line(self.dtensor_restart, line)
        cluster = find_cluster(options.name)
        count = parse_whole(options.clients, "clients", "a client count; it is 1 or more")
        keep = parse_names(options.keep) if options.keep is not None else None
        return self._restart(cluster, clients=count, mesh=options.mesh, keep=keep, replay=options.replay)

    def _restart(self, cluster: Cluster, **options: Any) -> Cluster:
        reports = []

        def restart(progress: StartProgress) -> Cluster:
            reports.append(cluster.restart(progress=progress.update, **options))
            return cluster

        self._with_progress(restart, restarted=True)
        if reports[0] is not None:
            print(reports[0])
        return cluster

    @magic_arguments()
    @name_argument()
    @argument("--all", action="store_true", help="end all clusters of this notebook")
    @line_magic
    def dtensor_shutdown(self, line: str) -> None:
        """End a cluster: its clients, files and sockets. Without a cluster it does nothing."""
        options = parse_line(self.dtensor_shutdown, line)
        if options.all:
            clusters = registry.all()
        elif options.name or registry.all():
            clusters = [find_cluster(options.name)]
        else:
            clusters = []
        for cluster in clusters:
            cluster.shutdown()
        print(f"ended: {', '.join(cluster.name for cluster in clusters)}" if clusters else "no cluster runs.")

    @magic_arguments()
    @argument("name", nargs="?", help="the cluster's name; not needed where there is one alone")
    @line_magic
    def dtensor_attach(self, line: str) -> Cluster:
        """Take up a cluster that a notebook left running, with its variables: after a restart, or elsewhere.

        A cluster outlives its notebook with %dtensor_init --lease, or after %dtensor_detach.
        """
        from .background import BackgroundCluster

        options = parse_line(self.dtensor_attach, line)
        name = options.name or _only_other_cluster()
        cluster = BackgroundCluster.attach(name)
        state = cluster.state(sample=False)
        if state.cell:
            print(f"{name} is still at work ({state.cell}); what it said meanwhile is in %dtensor_logs.")
        return cluster

    @magic_arguments()
    @argument("--lease", metavar="MIN", help="minutes that the clients live on without a notebook (60)")
    @name_argument()
    @line_magic
    def dtensor_detach(self, line: str) -> None:
        """Leave a cluster running, also when this notebook ends; %dtensor_attach takes it up again."""
        from .background import BackgroundCluster

        options = parse_line(self.dtensor_detach, line)
        cluster = find_cluster(options.name)
        if not isinstance(cluster, BackgroundCluster):
            raise SpecError(
                "the client is the notebook kernel itself; only background clients can be left running."
            )
        minutes = parse_time(options.lease, "lease", "minutes") or self.lease or 60.0
        cluster.detach(minutes)
        print(f"{cluster.name} runs on for {minutes:g} minutes; %dtensor_attach {cluster.name} takes it up.")

    # --- cells

    @line_cell_magic
    def dtensor(self, line: str, cell: str | None = None) -> CellHandle | None:
        r"""Run a cell, or a line, on the clients, and show what they put out.

        ::

          %%dtensor [--on 0,2-3] [--timeout S] [--output MODE] [--setup] [--collect NAMES] [--no-wait] [--name NAME]
          %dtensor [the same options] CODE

        optional arguments:
          --on 0,2-3        the clients to run on; all without it
          --timeout S       interrupt the clients that run longer than S seconds
          --output MODE     fold: what clients say alike once, with their ids (the default); each: line by
                            line as it comes; first: the first client's alone; none: errors only
          --no-wait         return at once, with a handle: state, wait(), cancel(); output appears as it comes
          --setup           a restart with --keep or --replay runs this cell again
          --collect NAMES   afterwards, bring these variables to the notebook, as %dtensor_pull does
          --name NAME       the cluster's name; without it the one that was started last
        """
        valued = ("--on", "--timeout", "--output", "--collect", "--name")
        options, rest = split_cell_options(line, valued, ("--setup", "--no-wait"), "%%dtensor")
        if cell is None:
            code = rest
        elif rest:
            raise SpecError(f"%%dtensor: {rest!r} is no option; code goes into the lines below, or after %dtensor.")
        else:
            code = cell
        cluster = find_cluster(options.get("--name"))
        cluster.fail_grace = self.fail_grace
        wishes: dict[str, Any] = {
            "on": parse_clients(options["--on"]) if "--on" in options else None,
            "timeout": parse_time(options.get("--timeout")) or self.cell_timeout or None,
            "output": options.get("--output", self.output),
            "setup": "--setup" in options,
        }
        collected = cluster.check_names(split_names([options["--collect"]])) if "--collect" in options else []
        if "--no-wait" in options:
            if collected:
                raise SpecError("%%dtensor: --collect needs the cell's end, which --no-wait does not wait for.")
            return cluster.run_later(code, **wishes)
        try:
            cluster.run(code, **wishes)
        except DTensorMagicError as error:
            if self.auto_rebuild and cluster.closed_reason:
                print(f"dtensor_magic: rebuilding {cluster.name}: {cluster.closed_reason}.")
                self._restart(cluster, keep=["all"])
                error.hint = ""
            raise
        if collected:
            collect(self.shell, cluster, collected, wishes["on"])
        return None

    @magic_arguments()
    @name_argument()
    @line_magic
    def dtensor_interrupt(self, line: str) -> None:
        """Interrupt the cell that runs on the clients, also one that hangs in a collective.

        First an interrupt, then its collectives are aborted, then the client is killed, within some 3 seconds.
        """
        options = parse_line(self.dtensor_interrupt, line)
        cluster = find_cluster(options.name)
        print(f"{cluster.name}: {describe_outcomes(cluster.interrupt())}")

    @magic_arguments()
    @name_argument()
    @line_magic
    def dtensor_stacks(self, line: str) -> None:
        """Show where each client stands: the cell's frames first, with their source lines."""
        options = parse_line(self.dtensor_stacks, line)
        by_text: dict[str, list[int]] = {}
        for client, text in find_cluster(options.name).stacks().items():
            by_text.setdefault(text, []).append(client)
        for text, clients in by_text.items():
            print(f"[{client_ranges(clients)}] {text}")

    # --- what is there

    @magic_arguments()
    @name_argument()
    @line_magic
    def dtensor_status(self, line: str) -> None:
        """Show the clients: phase, process, memory, CPU, devices, address."""
        from IPython.display import display

        options = parse_line(self.dtensor_status, line)
        if options.name is None and not registry.all():
            print(NO_CLUSTER)
            return
        display(find_cluster(options.name))

    @magic_arguments()
    @argument("client", nargs="?", default="0", metavar="I", help="the client (0)")
    @argument("--bytes", metavar="N", help="how much of the log's end to show (4000); all for the whole log")
    @name_argument()
    @line_magic
    def dtensor_logs(self, line: str) -> None:
        """Show what a client's process wrote to its own output and error streams: TensorFlow's C++ log mostly."""
        options = parse_line(self.dtensor_logs, line)
        client = parse_whole(options.client, "client", "a client's number", least=0)
        size = -1 if options.bytes == "all" else parse_whole(options.bytes, "bytes", "a number of bytes, or all")
        assert client is not None
        print(find_cluster(options.name).logs(client, size or 4000) or f"client {client} wrote nothing yet.")

    # --- what they share

    def _default_lease(self, options: Any) -> float:
        """Return the configured lease, for clusters that can have one."""
        clients = options.clients or self.clients
        background = options.background or (str(clients).isdigit() and int(clients) > 1 and not options.here)
        return self.lease if background and (options.start_method or self.start_method) == "fork" else 0.0


def _only_other_cluster() -> str:
    """Return the name of the one cluster of this user that is not this notebook's."""
    own = {cluster.name for cluster in registry.all()}
    names = [record.name for record in live_records() if record.name not in own]
    if len(names) != 1:
        told = f"there are {', '.join(names)}; name one" if names else "none runs without a notebook"
        raise SpecError(f"%dtensor_attach: {told}.")
    return names[0]
