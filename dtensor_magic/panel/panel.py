"""The panel: form, buttons, and what the clients do, live. One per notebook, however often it is shown."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from ..background import BackgroundCluster
from ..cluster import Cluster, registry, start_cluster
from ..errors import DTensorMagicError, describe_outcomes
from ..parsing import parse_names
from ..state import ClusterPhase, ClusterState
from ..views import html, mesh, text, timeline
from .explorer import Explorer
from .following import Follower
from .form import Form
from .kernels import FrontEnd

if TYPE_CHECKING:
    from ..magics import DTensorMagics

_TABS = ("Clients", "Mesh", "Timeline", "Variables")

_NOTHING = "<small>Nothing to show: no cluster runs.</small>"

_NO_MESH = (
    "<small>There is no mesh yet: give --mesh, or make one in a cell (dtensor.create_distributed_mesh).</small>"
)

#: Seconds after which the tabs that are not seen are drawn anew.
OTHERS_INTERVAL = 3.0

#: Seconds in which a click on Stop must be confirmed by another.
CONFIRM = 5.0


class Panel:
    """Form, buttons and live views of the cluster that cells go to, or of one that is chosen.

    Parameters
    ----------
    magics : DTensorMagics
    """

    def __init__(self, magics: DTensorMagics) -> None:
        self._magics = magics
        self._lock = threading.RLock()
        self._front_end = FrontEnd(magics.shell)
        self._acting = ""
        #: The cluster that a click on Stop was for, and until when another one confirms it.
        self._to_stop: tuple[Cluster | None, float] = (None, 0.0)
        self._drawn_all = 0.0
        self._last: tuple[Cluster | None, ClusterState | None] = (None, None)
        self._follower = Follower(self._show, self._say, self._front_end)
        self._head = widgets.HTML()
        self._note = widgets.HTML()
        self._said = widgets.HTML()
        self._choice = widgets.Dropdown(options=[], description="Cluster", layout=widgets.Layout(width="18em"))
        self._start = _button("Start", "play", self._on_start)
        self._stop = _button("Stop", "power-off", self._on_stop)
        self._interrupt = _button("Interrupt", "stop", self._on_interrupt)
        self._restart = _button("Restart", "refresh", self._on_restart)
        self._keep = widgets.Text(
            value="all", description="keep", placeholder="nothing", layout=widgets.Layout(width="14em")
        )
        self._keep.style.description_width = "3em"
        self.form = Form(magics, self._buttons)
        self._explorer = Explorer(self._follower.cluster, self._say)
        self._views = [widgets.HTML() for _ in _TABS[:3]]
        self._tabs = widgets.Tab([*self._views, self._explorer.box])
        for position, title in enumerate(_TABS):
            self._tabs.set_title(position, title)
        self._start.layout.align_self = "flex-start"
        self._fold = widgets.Accordion([widgets.VBox([self.form.box, self._start])])
        self._fold.set_title(0, "Start a cluster")
        self._fold.selected_index = 0
        self.box = self._lay_out()
        self._choice.observe(self._on_choice, "value")
        self._tabs.observe(self._on_tab, "selected_index")
        self.box.observe(self._on_views, "_view_count")
        self.form.check()
        self._follower.look()

    def _lay_out(self) -> Any:
        row = widgets.HBox([self._interrupt, self._restart, self._keep, self._stop])
        row.layout.flex_flow = "row wrap"
        head = widgets.HBox([self._head, self._choice], layout=widgets.Layout(justify_content="space-between"))
        style = widgets.HTML(f"<style>{_style()}</style>")
        unseen = self._follower.presence.widget
        box = widgets.VBox([style, head, self._fold, row, self._said, self._note, self._tabs, unseen])
        box.add_class("dtensor-panel")
        for widget in _all_widgets(box):
            self._front_end.hear_while_busy(widget)
        # From here on the front end counts the panel's views in it.
        box._view_count = 0  # noqa: SLF001 - a trait that ipywidgets documents, with this name
        return box

    def close(self) -> None:
        """End it: its thread, and its views."""
        self._follower.views(0)
        self._front_end.close()
        for widget in list(_all_widgets(self.box)):
            widget.close()

    def as_text(self) -> str:
        """Return what stands in the notebook where no widget can be shown."""
        state = self._last[1]
        card = text.card(state) if state is not None else "No cluster runs."
        return f"{card}\n(The panel is live in a running notebook; %dtensor_panel shows it.)"

    # --- what it shows

    def _on_views(self, change: Any) -> None:
        self._follower.views(change["new"] or 0)

    def _show(self, cluster: Cluster | None, state: ClusterState | None) -> None:
        """Take in a state: the follower's listener."""
        with self._lock:
            before = self._last
            self._last = cluster, state
            self._head.value = f"<h3>{escape(_headline(cluster, state))}</h3>"
            self._note.value = self._busy_note(state)
            self._list_clusters(cluster)
            self._buttons()
            self._draw(state)
        over = _last_end(before[1]) != _last_end(state)
        if self._tabs.selected_index == _TABS.index("Variables") and (over or before[0] is not cluster):
            self._explorer.refresh()

    def _draw(self, state: ClusterState | None) -> None:
        """Draw the tab that is seen, and now and then the others, which a kernel that hears no clicks must have."""
        now = time.monotonic()
        all_of_them = now - self._drawn_all > OTHERS_INTERVAL
        if all_of_them:
            self._drawn_all = now
        for position, (view, draw) in enumerate(zip(self._views, _DRAW, strict=True)):
            if all_of_them or position == self._tabs.selected_index:
                view.value = draw(state) if state is not None else _NOTHING

    def _busy_note(self, state: ClusterState | None) -> str:
        why = self._front_end.deaf()
        if not (why and _at_work(state)):
            return ""
        return (
            f"<small>The notebook kernel is busy with a cell, and {escape(why)}: clicks here wait until it ends. "
            "The stop button of the notebook interrupts the cell on all clients.</small>"
        )

    def _list_clusters(self, cluster: Cluster | None) -> None:
        names = tuple(one.name for one in registry.all())
        self._choice.layout.display = "" if len(names) > 1 else "none"
        chosen = cluster.name if cluster is not None and cluster.name in names else None
        if (tuple(self._choice.options), self._choice.value) != (names, chosen):
            # New options choose the first by themselves, which is no user's choice.
            self._choice.unobserve(self._on_choice, "value")
            self._choice.options, self._choice.value = names, chosen
            self._choice.observe(self._on_choice, "value")

    def _buttons(self) -> None:
        """Enable the buttons that do something now."""
        cluster, state = self._last
        busy = bool(self._acting)
        background = isinstance(cluster, BackgroundCluster)
        self._start.disabled = busy or bool(self.form.problem)
        self._stop.disabled = busy or cluster is None
        self._interrupt.disabled = not background or cluster is None or state is None
        self._restart.disabled = busy or cluster is None
        self._keep.disabled = not background
        self._interrupt.tooltip = (
            "Interrupt the cell that runs on the clients"
            if background
            else "The client is this notebook kernel: the notebook's own stop button interrupts it"
        )
        if not self._stop_asked(cluster):
            self._stop.description, self._stop.button_style = "Stop", ""

    def _say(self, message: str, *, problem: bool = False) -> None:
        kind = ' class="dtensor-problem" role="alert"' if problem else ' role="status"'
        mark = "✗ " if problem else ""
        lines = "<br>".join(escape(line) for line in message.splitlines())
        self._said.value = f"<div{kind}>{mark}{lines}</div>" if message else ""

    # --- what it does

    def _on_choice(self, change: Any) -> None:
        with self._lock:
            cluster = self._last[0]
        if change["new"] and (cluster is None or change["new"] != cluster.name):
            self._follower.chosen = change["new"]
            self._follower.poke()

    def _on_tab(self, change: Any) -> None:
        with self._lock:
            self._draw(self._last[1])
        if change["new"] == _TABS.index("Variables"):
            self._explorer.refresh()

    def _on_start(self) -> None:
        plan = self.form.check()
        if plan is None:
            return
        spec, line = self._magics.spec_of(self.form.compose()), self.form.line

        def start() -> str:
            cluster = start_cluster(spec, os.environ, self._show_start)
            # The one that was started last is followed, by whomever.
            self._follower.chosen = None
            self._fold.selected_index = None
            return f"{line}: {cluster.name} is ready."

        # DTensor in this very kernel is initialised where its cells run.
        self._act("starting", start, here=plan.mode != "clients")

    def _show_start(self, state: ClusterState) -> None:
        self._say(text.progress(state))

    def _on_stop(self) -> None:
        cluster = self._follower.cluster()
        if cluster is None:
            return
        if not self._stop_asked(cluster):
            self._to_stop = cluster, time.monotonic() + CONFIRM
            self._stop.description, self._stop.button_style = "Really stop?", "danger"
            self._say(f"Stop ends {cluster.name}, and its variables are lost. Click again to do it.")
            return
        self._to_stop = None, 0.0

        line = f"%dtensor_shutdown{_named(cluster)}"

        def stop() -> str:
            cluster.shutdown()
            self._fold.selected_index = 0
            return f"{line}: {cluster.name} is ended."

        self._act("stopping", stop, here=not isinstance(cluster, BackgroundCluster))

    def _stop_asked(self, cluster: Cluster | None) -> bool:
        return self._to_stop[0] is cluster and time.monotonic() < self._to_stop[1]

    def _on_interrupt(self) -> None:
        cluster = self._follower.cluster()
        if cluster is None:
            return

        def interrupt() -> None:
            try:
                self._say(f"%dtensor_interrupt{_named(cluster)}: {describe_outcomes(cluster.interrupt())}")
            except DTensorMagicError as error:
                self._say(str(error), problem=True)
            self._follower.poke()

        # Beside whatever else is being done.
        threading.Thread(target=interrupt, daemon=True, name="dtensor-panel-interrupt").start()

    def _on_restart(self) -> None:
        cluster = self._follower.cluster()
        if cluster is None:
            return
        words = self._keep.value.strip() if isinstance(cluster, BackgroundCluster) else ""
        try:
            keep = parse_names(words) if words else None
        except DTensorMagicError as error:
            self._say(str(error), problem=True)
            return
        line = f"%dtensor_restart{_named(cluster)}{f' --keep {words}' if words else ''}"

        def restart() -> str:
            report = cluster.restart(keep=keep, progress=self._show_start)
            return f"{line}: {cluster.name} is ready again." + (f"\n{report}" if report is not None else "")

        self._act("restarting", restart, here=not isinstance(cluster, BackgroundCluster))

    def _act(self, what: str, work: Callable[[], str], *, here: bool = False) -> None:
        """Do one thing at a time; on a thread of its own, so that the kernel stays free."""
        if here and self._front_end.busy:
            self._say("The notebook kernel runs a cell, and DTensor is its own: wait for the end.", problem=True)
            return
        with self._lock:
            if self._acting:
                return
            self._acting = what
        self._say(f"{what} ...")
        self._buttons()

        def act() -> None:
            try:
                self._say(work())
            except DTensorMagicError as error:
                self._say(str(error), problem=True)
            except Exception as error:  # noqa: BLE001 - whatever it is, its place is before the user's eyes
                self._say(f"{type(error).__name__}: {error}", problem=True)
            finally:
                self._acting = ""
                self.form.check()
                self._follower.look()

        if here:
            act()
        else:
            threading.Thread(target=act, daemon=True, name="dtensor-panel-action").start()


def _style() -> str:
    return (Path(__file__).parent / "panel.css").read_text("utf-8")


def _meshes(state: ClusterState) -> str:
    return "".join(mesh.svg(state, one, themed=True) for one in state.meshes) or _NO_MESH


#: What the first tabs show.
_DRAW: tuple[Callable[[ClusterState], str], ...] = (
    lambda state: html.card(state, headed=False),
    _meshes,
    lambda state: timeline.svg(state, time.time(), themed=True),
)


def _named(cluster: Cluster) -> str:
    """Return the option that a line needs to mean `cluster`."""
    return "" if registry.current() is cluster else f" --name {cluster.name}"


def _headline(cluster: Cluster | None, state: ClusterState | None) -> str:
    if cluster is None:
        return "No cluster runs"
    return text.headline(state) if state is not None else f"{cluster.name}: its host agent is gone, and its clients"


def _all_widgets(widget: Any) -> Iterator[Any]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _all_widgets(child)


def _last_end(state: ClusterState | None) -> float:
    """Return when the last cell ended: what names hold may be another thing since."""
    clients = state.clients if state is not None else []
    return max((client.cells[-1].end or 0.0 for client in clients if client.cells), default=0.0)


def _at_work(state: ClusterState | None) -> bool:
    return state is not None and state.phase is ClusterPhase.BUSY


def _button(label: str, icon: str, action: Callable[[], None]) -> Any:
    button = widgets.Button(description=label, icon=icon, layout=widgets.Layout(width="auto"))
    button.on_click(lambda _: action())
    return button
