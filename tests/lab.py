"""A real JupyterLab and a real browser: what tests of the notebook as people see it stand on.

Playwright's synchronous API keeps an event loop "running" in the thread that started it, so nothing else can run a loop
there until it is stopped. Fixtures therefore start and stop it for each module that asks for it: the modules before and
after have the thread to themselves, and tests that drive a browser talk to kernels through the page alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import psutil
import pytest
from conftest import marked_processes, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

#: Lab asks nothing, fetches nothing from elsewhere, and saves only when told to.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}

_LOG_ERROR = re.compile(r"^\[[EC] |\] (ERROR|CRITICAL) \||^Traceback \(most recent call last\)")
#: What the server may log as an error, and why.
LOG_ALLOWED = (
    re.compile(r"received signal 15, stopping$"),  # that is how it is stopped here
    re.compile(r"ServerApp\] $"),  # the line above the server's address and token
)
#: jupyter_server was just writing to a page's socket when that closed, and does not await the result.
_PAGE_CLOSED = re.compile(
    r"^Task exception was never retrieved\nfuture: .*WebSocketProtocol13\.write_message.*\n"
    r"(?:.*\n)*?tornado\.websocket\.WebSocketClosedError\n",
    re.MULTILINE,
)
#: What the page may log as an error, and why. Nothing so far.
CONSOLE_ALLOWED: tuple[re.Pattern[str], ...] = ()

_DONE = re.compile(r"^\[\d+\]:$")
_IDLE = re.compile(r"\| Idle$")


class Lab:
    """A JupyterLab server of this interpreter, with a home of its own; its token and XSRF check are as they are by default.

    Parameters
    ----------
    home : Path
        An empty folder. Notebooks lie in `root` below it.
    """

    def __init__(self, home: Path) -> None:
        self.root, self.runtime = home / "root", home / "runtime"
        self._log = home / "lab.log"
        self.root.mkdir()
        settings = home / "config" / "labconfig" / "default_setting_overrides.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(SETTINGS))
        folders = {
            "HOME": home,
            "IPYTHONDIR": home / "ipython",
            "JUPYTER_CONFIG_DIR": home / "config",
            "JUPYTER_DATA_DIR": home / "data",
            "JUPYTER_RUNTIME_DIR": self.runtime,
            "XDG_CACHE_HOME": home / "cache",
            "XDG_CONFIG_HOME": home / "xdg-config",
            "XDG_DATA_HOME": home / "xdg-data",
            # The environment's own kernelspec, whose `python` is this interpreter, before the system's.
            "JUPYTER_PREFER_ENV_PATH": "1",
        }
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--notebook-dir={self.root}"],
                env=os.environ | {name: str(value) for name, value in folders.items()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            wait_for(self._answers, timeout=60, what="JupyterLab's API")
        except BaseException:
            self._server.kill()
            self._server.wait()
            print(self._log.read_text())
            raise

    def _answers(self) -> bool:
        # The server takes the next free port, and says in this file which one.
        info = self.runtime / f"jpserver-{self._server.pid}.json"
        if self._server.poll() is not None:
            pytest.fail(f"JupyterLab ended:\n{self._log.read_text()}")
        try:
            told = json.loads(info.read_text())
            self.url, self.token = told["url"].rstrip("/"), told["token"]
            self.api("GET", "/api/status")
        except (OSError, ValueError):
            return False
        return True

    def api(self, method: str, path: str) -> Any:
        """Ask the server's REST API."""
        request = urllib.request.Request(
            self.url + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")

    def end_kernels(self) -> None:
        """End all kernels; fail if one leaves a process."""
        for session in self.api("GET", "/api/sessions"):
            self.api("DELETE", f"/api/sessions/{session['id']}")
        self._await_end(besides=self._server.pid)

    def _await_end(self, besides: int | None = None) -> None:
        """Wait until all processes have ended; kill those that do not, and fail."""

        def left() -> list[psutil.Process]:
            return [process for process in marked_processes(self.runtime) if process.pid != besides]

        try:
            wait_for(lambda: not left(), timeout=15, what="all processes have ended")
        finally:
            for process in left():
                print("left:", process)
                process.kill()

    def stop(self) -> None:
        """Stop the server; fail if that takes long or leaves a process."""
        self._server.terminate()
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
            pytest.fail(f"JupyterLab did not stop:\n{self._log.read_text()}")
        self._await_end()

    def errors(self) -> list[str]:
        """Return what the server and its kernels logged as errors; print all that they logged where there are some."""
        text = self._log.read_text()
        found = [
            line
            for line in _PAGE_CLOSED.sub("", text).splitlines()
            if _LOG_ERROR.search(line) and not any(allowed.search(line) for allowed in LOG_ALLOWED)
        ]
        if found:
            print(text)
        return found


class Cell:
    """A code cell on the page."""

    def __init__(self, locator: Locator) -> None:
        self.locator = locator
        #: Its outputs, for roles and labels in them.
        self.output = locator.locator(".jp-Cell-outputArea")

    def done(self, timeout: float = 60.0) -> Cell:
        """Wait for its end; return it."""
        from playwright.sync_api import expect

        expect(self.locator.locator(".jp-InputPrompt")).to_have_text(_DONE, timeout=timeout * 1000)
        return self

    def shows(self, text: str | re.Pattern[str], timeout: float = 30.0) -> Cell:
        """Wait until its outputs contain `text`; return it."""
        from playwright.sync_api import expect

        expect(self.output).to_contain_text(text, timeout=timeout * 1000)
        return self

    @property
    def texts(self) -> list[str]:
        """Each output's text, as the page shows it now."""
        return [text.rstrip("\n") for text in self.output.locator(".jp-OutputArea-output").all_inner_texts()]

    @property
    def text(self) -> str:
        """All outputs' text."""
        return "\n".join(self.texts)


class Notebook:
    """A notebook on a page of JupyterLab."""

    def __init__(self, page: Page, lab: Lab) -> None:
        self.page, self.lab = page, lab
        #: What the page's console and its scripts had to complain about.
        self.errors: list[str] = []
        page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._note(str(error)))

    def _note(self, text: str) -> None:
        if not any(allowed.search(text) for allowed in CONSOLE_ALLOWED):
            self.errors.append(text)

    def open(self, name: str = "notebook.ipynb") -> Notebook:
        """Open a new, empty notebook by its address, with a kernel that is idle."""
        kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell()], metadata={"kernelspec": kernel})
        nbformat.write(notebook, self.lab.root / name)
        # `reset` forgets what an earlier test had open.
        self.page.goto(f"{self.lab.url}/lab/tree/{name}?reset&token={self.lab.token}")
        return self.idle()

    def open_by_menu(self) -> Notebook:
        """Open a new notebook the way people do."""
        self.page.goto(f"{self.lab.url}/lab?reset&token={self.lab.token}")
        self.menu("File", "New", "Notebook")
        self.page.get_by_role("dialog").get_by_role("button", name="Select Kernel").click()
        return self.idle()

    def idle(self, timeout: float = 60.0) -> Notebook:
        """Wait until the status bar calls the kernel idle."""
        self.page.get_by_text(_IDLE).wait_for(timeout=timeout * 1000)
        return self

    def menu(self, menu: str, *path: str) -> None:
        """Choose from the menu bar: the name of a menu, of its item, of that one's item."""
        self.page.get_by_role("menuitem", name=menu, exact=True).click()
        for name in path:
            # By its text: Lab gives entries that open a submenu no role, and adds shortcuts to the others' names.
            self.page.get_by_role("menu").get_by_text(name, exact=True).click()

    @property
    def cells(self) -> list[Cell]:
        """The code cells."""
        return [Cell(locator) for locator in self._cells().all()]

    def _cells(self) -> Locator:
        return self.page.get_by_role("feed", name="Cells").locator(".jp-CodeCell")

    def start(self, code: str) -> Cell:
        """Type `code` into the last cell and run it; return the cell at once."""
        cells = self._cells()
        count = cells.count()
        cell = cells.nth(count - 1)
        cell.get_by_role("textbox").click()
        self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Shift+Enter")
        # The next one to type into.
        cells.nth(count).wait_for()
        return Cell(cell)

    def run(self, code: str, timeout: float = 60.0) -> Cell:
        """Type `code` into the last cell, run it to its end and return the cell."""
        return self.start(code).done(timeout)

    def interrupt(self) -> None:
        """Press the stop button."""
        self.page.get_by_role("button", name="Interrupt the kernel").click()

    def clear_outputs(self) -> None:
        """Clear the outputs of all cells by the menu."""
        self.menu("Edit", "Clear Outputs of All Cells")

    def theme(self, name: str) -> None:
        """Choose Lab's `Light` or `Dark` theme by the menu."""
        from playwright.sync_api import expect

        self.menu("Settings", "Theme", f"JupyterLab {name}")
        light = "true" if name == "Light" else "false"
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-light", light)

    def screenshot(self, path: Path, of: Locator | None = None) -> None:
        """Save a picture of the page, or of one part of it, however long."""
        (self.page if of is None else of).screenshot(path=path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Give Debian's chromium, or the one that `CHROMIUM` names."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if chromium is None:
        pytest.fail("browser tests need chromium: run `make chromium`, or set CHROMIUM to the path of one")
    arguments = [
        "--disable-dev-shm-usage",  # containers have little of it
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # what a page asks elsewhere fails everywhere
    ]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # chromium has none for root
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Give a JupyterLab; fail at its end if it or a kernel logged an error or left a process."""
    started = Lab(tmp_path_factory.mktemp("lab"))
    yield started
    started.stop()
    assert started.errors() == []


@pytest.fixture
def new_page(browser: Browser, lab: Lab) -> Iterator[Callable[[], Notebook]]:
    """Give a function that opens a page; fail at the end if one had errors or a kernel leaves processes."""
    opened: list[Notebook] = []

    def new_page() -> Notebook:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        opened.append(Notebook(context.new_page(), lab))
        return opened[-1]

    yield new_page
    for notebook in opened:
        notebook.page.context.close()
    lab.end_kernels()
    assert [error for notebook in opened for error in notebook.errors] == []


@pytest.fixture
def notebook(new_page: Callable[[], Notebook]) -> Notebook:
    """Give a new, empty notebook on a page."""
    return new_page().open()
