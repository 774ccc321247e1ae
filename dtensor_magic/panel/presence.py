"""Whether somebody looks at a widget: counted where views come and go, asked where a page just vanishes."""

from __future__ import annotations

import time
from typing import Any

import ipywidgets as widgets

#: Seconds between two questions to the page.
ASK = 20.0

#: Seconds that the page has for an answer.
PATIENCE = 10.0

#: Milliseconds until the page's timer answers.
_STEP = 200


class Presence:
    """Asks the page whether it still shows us.

    The front end counts a widget's views (``_view_count``), but a page that is closed or loaded anew takes none
    back. So a player that nobody sees is started now and then: where it is shown, the page's own timer advances it.

    Attributes
    ----------
    widget : ipywidgets.Play
        To be shown together with what it is to tell about.
    """

    def __init__(self) -> None:
        self.widget = widgets.Play(value=0, min=0, max=10**9, interval=_STEP)
        self.widget.layout.display = "none"
        self._trait = "playing" if self.widget.has_trait("playing") else "_playing"
        self._asked = 0.0
        self._heard = time.monotonic()
        self.widget.observe(self._on_answer, "value")

    def _on_answer(self, _: Any) -> None:
        self._heard = time.monotonic()
        setattr(self.widget, self._trait, False)

    def seen(self) -> None:
        """Note that a view came: the page is there now."""
        self._heard = time.monotonic()

    def gone(self, *, deaf: bool) -> bool:
        """Ask, where it is time to, and say whether the page left the last question unanswered.

        Parameters
        ----------
        deaf : bool
            Whether an answer could not reach us now.
        """
        now = time.monotonic()
        if deaf:
            self._heard = now
        elif now - max(self._heard, self._asked) > ASK:
            self._asked = now
            setattr(self.widget, self._trait, False)
            setattr(self.widget, self._trait, True)
        return self._asked > self._heard and now - self._asked > PATIENCE
