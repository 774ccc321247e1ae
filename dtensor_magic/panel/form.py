"""The panel's form: fields that say a line of ``%dtensor_init``, and check themselves by the magic's own words."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from ..cluster import check_name_free, registry
from ..devices import DEVICE_TYPES, preferred_device_type
from ..errors import DTensorMagicError, SpecError
from ..magic_lines import parse_line
from ..plan import ClusterPlan

if TYPE_CHECKING:
    from ..magics import DTensorMagics

#: Which field a check's message is about, by how it begins.
_FIELD_OF = {
    "device type": "device_type",
    "CPU": "device_type",
    "GPU": "device_type",
    "TPU": "device_type",
    "clients": "clients",
    "logical CPUs": "logical_cpus",
    "mesh": "mesh",
    "job name": "job_name",
    "name": "name",
    "start method": "start_method",
    "%dtensor_init": "more",
    "--": "more",
    "cluster": "name",
}

#: Options of fields that take a value, in the order in which the magic line has them.
_VALUES = {
    "clients": "-n",
    "logical_cpus": "--logical-cpus",
    "mesh": "--mesh",
    "job_name": "--job-name",
    "start_method": "--start-method",
    "name": "--name",
}


class Form:
    """The fields, the line that says the same, and what is wrong with it.

    Parameters
    ----------
    magics : DTensorMagics
        Reads a line of ``%dtensor_init``, and has its defaults.
    on_change : callable
        Called after each check.

    Attributes
    ----------
    line : str
        The magic line.
    problem : str
        What is wrong with it, in the magic's words; empty where nothing is.
    box : ipywidgets.VBox
    """

    def __init__(self, magics: DTensorMagics, on_change: Callable[[], None]) -> None:
        self._magics = magics
        self._on_change = on_change
        self.line = ""
        self.problem = ""
        self.fields: dict[str, Any] = {
            "device_type": _choice(
                [(f"preferred: {preferred_device_type()}", ""), *((t, t) for t in DEVICE_TYPES)]
            ),
            "clients": _text(str(magics.clients or 1)),
            "mesh": _text("", "batch=4,model=2"),
            "logical_cpus": _text("", "TensorFlow's choice"),
            "name": _text("", "dtensor-1, dtensor-2, ..."),
            "job_name": _text("", "worker"),
            "start_method": _choice([("fork", "fork"), ("exec", "exec")]),
            "more": _text("", "other options, e.g. --lease 30"),
            "background": _box("in the background"),
            "megcore": _box("megcore"),
            "reset_context": _box("reset context"),
            "coordination": _box("coordination service", value=True),
        }
        self._reasons = {name: widgets.HTML() for name in ("background", "megcore", "reset_context")}
        self._said = widgets.HTML()
        self._command = widgets.HTML()
        self.fields["device_type"].value = magics.device_type.upper()
        self.fields["start_method"].value = magics.start_method
        #: Values that need no option, since the magic has them anyway.
        self._unset = {name: self.fields[name].value for name in ("device_type", "clients", "start_method")}
        self.box = self._lay_out()
        for field in self.fields.values():
            field.observe(self._changed, "value")

    def _lay_out(self) -> Any:
        labels = {
            "device_type": "Device type",
            "clients": "Clients",
            "mesh": "Mesh",
            "logical_cpus": "CPUs per client",
            "name": "Cluster name",
            "job_name": "Job name",
            "start_method": "Start method",
            "more": "More options",
        }
        cells = []
        for name, label in labels.items():
            self.fields[name].description = label
            self.fields[name].style.description_width = "8em"
            self.fields[name].layout.width = "auto"
            cells.append(self.fields[name])
        for name in ("background", "megcore", "reset_context", "coordination"):
            reason = self._reasons.get(name)
            row = widgets.HBox([self.fields[name], *([reason] if reason is not None else [])])
            row.add_class("dtensor-check")
            cells.append(row)
        grid = widgets.GridBox(
            cells, layout=widgets.Layout(grid_template_columns="repeat(auto-fit, minmax(22em, 1fr))")
        )
        grid.add_class("dtensor-form")
        self._said.add_class("dtensor-said")
        self._command.add_class("dtensor-command")
        return widgets.VBox([grid, self._said, self._command])

    def _changed(self, _: Any) -> None:
        self.check()

    def compose(self) -> str:
        """Return the line that the fields say, without the magic's name."""
        value = {name: field.value for name, field in self.fields.items()}
        words: list[str] = [] if value["device_type"] == self._unset["device_type"] else [value["device_type"]]
        for name, option in _VALUES.items():
            text = str(value[name]).strip()
            if text and text != self._unset.get(name):
                words += [option, shlex.quote(text)]
        for name in ("background", "megcore", "reset_context"):
            if value[name] and not self.fields[name].disabled:
                words.append("--" + name.replace("_", "-"))
        if not value["coordination"]:
            words.append("--no-coordination-service")
        return " ".join([*words, value["more"].strip()]).strip()

    def check(self) -> ClusterPlan | None:
        """Check the line as the magic would; say what is wrong, or what it will start."""
        self._disable()
        self.line = f"%dtensor_init {self.compose()}".strip()
        plan, self.problem = None, ""
        try:
            spec = self._magics.spec_of(self.compose())
            plan = spec.plan(os.environ)
            if parse_line(self._magics.dtensor_init, self.compose()).plan:
                raise SpecError("--plan starts nothing: give it to %dtensor_init in a cell.")
            if spec.name and registry.same_request(spec) is None:
                check_name_free(spec.name)
        except DTensorMagicError as error:
            self.problem = str(error)
        self._mark()
        said = f"✗ {self.problem}" if self.problem else f"✓ {_describe(plan)}"
        kind = "dtensor-wrong" if self.problem else "dtensor-right"
        self._said.value = f'<div role="status" aria-live="polite" class="{kind}">{escape(said)}</div>'
        self._command.value = (
            '<div>the same as <code tabindex="0" role="textbox" aria-readonly="true" title="click, and copy" '
            f'aria-label="The magic line that says the same">{escape(self.line)}</code></div>'
        )
        self._on_change()
        return plan

    def _mark(self) -> None:
        wrong = next((field for start, field in _FIELD_OF.items() if self.problem.startswith(start)), None)
        for name, field in self.fields.items():
            if name == wrong:
                field.add_class("dtensor-wrong-field")
            else:
                field.remove_class("dtensor-wrong-field")

    def _disable(self) -> None:
        """Disable what does not apply, and say why."""
        several = self.fields["clients"].value.strip() not in ("", "1")
        reasons = {
            "background": "several clients always are" if several else "",
            "megcore": "" if self.fields["device_type"].value == "TPU" else "for TPU alone",
            "reset_context": _no_reset(in_background=several or self.fields["background"].value),
        }
        for name, reason in reasons.items():
            self.fields[name].disabled = bool(reason)
            self._reasons[name].value = f"<small>{escape(reason)}</small>" if reason else ""


def _text(value: str, placeholder: str = "") -> Any:
    return widgets.Text(value=value, placeholder=placeholder, continuous_update=True)


def _choice(options: list[tuple[str, str]]) -> Any:
    return widgets.Dropdown(options=options, value=options[0][1])


def _box(label: str, *, value: bool = False) -> Any:
    box = widgets.Checkbox(value=value, description=label, indent=False)
    box.layout.width = "auto"
    return box


def _no_reset(*, in_background: bool) -> str:
    """Say why there is no context to reset; empty where there is one."""
    if in_background:
        return "background clients are fresh processes"
    if "tensorflow" not in sys.modules:
        return "this kernel has no TensorFlow context"
    from ..notebook import context_live

    return "" if context_live() else "this kernel has no TensorFlow context"


def _describe(plan: ClusterPlan | None) -> str:
    """Say what a start will bring."""
    assert plan is not None
    count = f"{plan.clients} {plan.device_type} client{'s' * (plan.clients != 1)}"
    where = {
        "clients": "in the background",
        "local": "in this notebook kernel (local mode)",
        "here": "of which this kernel is one",
    }[plan.mode]
    mesh = f", mesh {plan.mesh}" if plan.mesh else ""
    return " ".join([f"{count} {where}{mesh}.", *(f"Note: {warning}" for warning in plan.warnings)])
