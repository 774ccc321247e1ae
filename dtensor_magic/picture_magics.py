"""The magics that show: the mesh, layouts, variables, the timeline, and the panel."""

from __future__ import annotations

import time
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from .cluster import Cluster
from .errors import SpecError
from .magic_lines import find_cluster, name_argument, parse_line
from .state import ClusterState, MeshState
from .variables import gather, over_clients


@magics_class
class PictureMagics(Magics):  # type: ignore[misc]
    """Pictures: SVG in a notebook, text in a terminal."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._panel: Any = None

    @magic_arguments()
    @argument("mesh", nargs="?", metavar="NAME", help="the mesh's variable; without it all meshes")
    @argument("--live", action="store_true", help="keep the picture current, as the panel does")
    @name_argument()
    @line_magic
    def dtensor_mesh(self, line: str) -> None:
        """Show a mesh: every device in its place, with its client, state and memory.

        NAME may also be a DTensor or a layout, whose mesh is shown then.
        """
        from .views import mesh

        options = parse_line(self.dtensor_mesh, line)
        cluster = find_cluster(options.name)
        if options.live:
            from .panel.live import live_mesh

            live_mesh(cluster, options.mesh)
            return
        state = cluster.state()
        for one in find_meshes(cluster, state, options.mesh):
            _show(mesh.svg(state, one), mesh.text(state, one))

    @magic_arguments()
    @argument("names", nargs="+", metavar="NAME", help="variables, or their attributes: w, model.kernel")
    @argument("--values", action="store_true", help="add a small heat map of the values")
    @name_argument()
    @line_magic
    def dtensor_layout(self, line: str) -> None:
        """Show which part of a tensor each device holds; several side by side.

        Works for DTensors, DVariables, lists and dicts of them, tf.Modules and models.
        """
        from .views import layout

        options = parse_line(self.dtensor_layout, line)
        cluster = find_cluster(options.name)
        variables = gather(cluster.describe(options.names, values=options.values))
        state = cluster.state(sample=False)
        _show(layout.svg(variables, state), layout.text(variables, state))

    @magic_arguments()
    @name_argument()
    @line_magic
    def dtensor_variables(self, line: str) -> None:
        """List the variables on the clients: type, shape, layout and bytes, and where clients differ."""
        from IPython.display import display

        from .views import names

        options = parse_line(self.dtensor_variables, line)
        cluster = find_cluster(options.name)
        found = over_clients(cluster.describe())
        if not found:
            print(f"{cluster.name} has no variables yet.")
            return
        display({"text/plain": names.text(found), "text/html": names.html(found)}, raw=True)

    @magic_arguments()
    @name_argument()
    @line_magic
    def dtensor_timeline(self, line: str) -> None:
        """Show the last cells as bars per client: running, waiting in a collective, done, failed."""
        from .views import timeline

        options = parse_line(self.dtensor_timeline, line)
        state = find_cluster(options.name).state(sample=False)
        now = time.time()
        _show(timeline.svg(state, now), timeline.text(state, now))

    @magic_arguments()
    @line_magic
    def dtensor_panel(self, line: str) -> None:
        """Show the panel: a form to start a cluster, buttons, and live views of it."""
        from .panel.live import show_panel

        parse_line(self.dtensor_panel, line)
        if self._panel is None:
            from .panel.panel import Panel

            self._panel = Panel(self.shell.magics_manager.registry["DTensorMagics"])
        show_panel(self._panel)

    def close(self) -> None:
        """Close the panel, if there is one."""
        if self._panel is not None:
            self._panel.close()
            self._panel = None


def find_meshes(cluster: Cluster, state: ClusterState, name: str | None) -> list[MeshState]:
    """Return the meshes that a line means: all, or that of variable `name`.

    Raises
    ------
    SpecError
        If there is none.
    """
    if name is None:
        if state.meshes:
            return state.meshes
        raise SpecError(
            f"{cluster.name} has no mesh yet: give %dtensor_init a --mesh, or make one in a cell "
            "(dtensor.create_distributed_mesh)."
        )
    named = [mesh for mesh in state.meshes if mesh.name == name]
    if named:
        return named
    found = over_clients(cluster.describe([name]))[0].first
    if found.mesh is None:
        raise SpecError(f"{name} is a {found.type} and has no mesh; name a Mesh, a Layout or a DTensor.")
    return [found.mesh]


def _show(svg: str, text: str) -> None:
    from IPython.display import display

    display({"image/svg+xml": svg, "text/plain": text}, raw=True)
