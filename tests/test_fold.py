"""What clients say alike is shown once; nothing is dropped, rewritten, or reordered within a client."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dtensor_magic.execution.fold import HOLD, Folder, Piece
from dtensor_magic.state import client_ranges


def lines(pieces: list[Piece]) -> list[str]:
    return [f"[{client_ranges(piece.clients)}] {piece.text}" for piece in pieces]


def test_a_line_that_all_say_is_shown_at_once_and_once():
    folder = Folder(range(3))
    for client in range(3):
        assert folder.take(0.0) == []
        folder.text(client, "stdout", "same\n", 0.0)
    assert lines(folder.take(0.0)) == ["[0-2] same\n"]


def test_a_line_that_some_say_waits_a_moment_for_the_others():
    folder = Folder(range(3))
    folder.text(0, "stdout", "a\n", 0.0)
    folder.text(2, "stdout", "a\n", 0.0)
    assert folder.take(HOLD / 2) == []
    assert lines(folder.take(HOLD)) == ["[0, 2] a\n"]


def test_repeated_lines_of_one_client_stay_as_many():
    folder = Folder(range(2))
    for client in range(2):
        folder.text(client, "stdout", "x\n" * 5, 0.0)
    assert lines(folder.take(0.0)) == ["[0-1] x\n"] * 5


def test_an_additional_line_of_one_client_does_not_unfold_the_rest():
    folder = Folder(range(3))
    folder.text(0, "stdout", "extra\n", 0.0)
    for client in range(3):
        folder.text(client, "stdout", "a\nb\n", 0.0)
        folder.finish(client)
    assert lines(folder.take(0.0)) == ["[0] extra\n", "[0-2] a\n", "[0-2] b\n"]


def test_what_differs_comes_client_by_client():
    folder = Folder(range(2))
    for client in (1, 0):
        folder.text(client, "stdout", f"{client} one\n{client} two\n", 0.0)
        folder.finish(client)
    assert lines(folder.take(0.0)) == ["[0] 0 one\n", "[1] 1 one\n", "[0] 0 two\n", "[1] 1 two\n"]


def test_a_last_line_without_newline_is_kept_as_it_is():
    folder = Folder([0])
    folder.text(0, "stdout", "no newline", 0.0)
    assert folder.take(0.0) == []
    folder.text(0, "stdout", " yet", 0.01)
    folder.finish(0)
    assert [piece.text for piece in folder.take(0.01)] == ["no newline yet"]


def test_streams_are_not_mixed_up():
    folder = Folder(range(2))
    folder.text(0, "stdout", "x\n", 0.0)
    folder.text(1, "stderr", "x\n", 0.0)
    for client in range(2):
        folder.finish(client)
    assert [(piece.clients, piece.kind) for piece in folder.take(0.0)] == [((0,), "stdout"), ((1,), "stderr")]


def test_displays_that_will_be_updated_stay_one_clients_own():
    folder = Folder(range(2))
    for client in range(2):
        content = {"data": {"text/plain": "x"}, "metadata": {}, "transient": {"display_id": "d"}}
        folder.rich(client, "display_data", content, 0.0)
        folder.finish(client)
    assert [piece.clients for piece in folder.take(0.0)] == [(0,), (1,)]


def test_equal_displays_fold():
    folder = Folder(range(2))
    for client in range(2):
        folder.rich(client, "display_data", {"data": {"text/html": "<b>x</b>"}, "metadata": {}}, 0.0)
    assert [piece.clients for piece in folder.take(0.0)] == [(0, 1)]


def test_each_folds_nothing_and_waits_for_nobody():
    folder = Folder(range(2), hold=0.0)
    folder.text(1, "stdout", "x\n", 0.0)
    folder.text(0, "stdout", "x\n", 0.1)
    assert [piece.clients for piece in folder.take(0.1)] == [(1,), (0,)]


words = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["stdout", "stderr"]),
        st.text("ab \t\r\n", max_size=6),
        st.floats(0, 0.2),
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(words)
def test_each_clients_text_comes_back_whole_and_in_order(said):
    folder = Folder(range(3))
    now = 0.0
    shown: list[Piece] = []
    expected: dict[int, list[tuple[str, str]]] = {client: [] for client in range(3)}
    for client, stream, text, pause in said:
        now += pause
        folder.text(client, stream, text, now)
        expected[client].append((stream, text))
        shown += folder.take(now)
    for client in range(3):
        folder.finish(client)
    shown += folder.take(now)
    assert folder.wait_until(now) is None
    for client in range(3):
        got = [(piece.kind, piece.text) for piece in shown if client in piece.clients]
        assert _joined(got) == _joined(expected[client])


def _joined(parts):
    joined: list[list[str]] = []
    for stream, text in parts:
        if not text:
            continue
        if joined and joined[-1][0] == stream:
            joined[-1][1] += text
        else:
            joined.append([stream, text])
    return joined
