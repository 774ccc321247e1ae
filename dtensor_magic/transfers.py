"""Values to a cluster's clients and back: a base of `Cluster`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import SpecError

if TYPE_CHECKING:
    from .gathering import Pulled


class Transfers(ABC):
    """What a cluster does with values."""

    @abstractmethod
    def push(self, values: Mapping[str, Any], on: Iterable[int] | None = None) -> None:
        """Bind values on all clients, or those named: on each of them, or, if one cannot take them, on none.

        NumPy arrays and TensorFlow tensors are in memory once per host, however many clients get them; each may
        write to its array, and then has those pages for itself. While a cell runs, this waits for its turn.

        Parameters
        ----------
        values : mapping of str to object
            By name. What they share stays shared.
        on : iterable of int, optional

        Raises
        ------
        TransferError
            For a value that cannot be pickled; nothing was sent then.
        ClientDiedError
            If a client is dead, or dies meanwhile.
        """

    def pull(self, names: str | Sequence[str], on: Iterable[int] | None = None) -> Any:
        """Return what names hold on all clients, or those named.

        A DTensor or DVariable is its global array, put together from shards on whatever clients hold them. A value
        that is the same on all is that value; one that differs is a `PerClient`, by client id.

        Parameters
        ----------
        names : str or sequence of str
        on : iterable of int, optional

        Returns
        -------
        object or dict of str to object
            The value of the one name, or a dict of the values of several.

        Raises
        ------
        TransferError
            For a name that a client does not have, a value that cannot be pickled, or shards that nobody has.
        ClientDiedError
            If a client dies meanwhile.
        """
        if isinstance(names, str):
            return self.fetch([names], on)[names].value
        return {name: pulled.value for name, pulled in self.fetch(names, on).items()}

    @abstractmethod
    def fetch(self, names: Sequence[str], on: Iterable[int] | None = None) -> dict[str, Pulled]:
        """Return what :meth:`pull` does, with what there is to say of it."""

    def check_names(self, names: Iterable[str]) -> list[str]:
        """Return names to push or pull, checked; each once.

        Raises
        ------
        SpecError
            For what is no name, or none at all.
        """
        found = list(dict.fromkeys(names))
        wrong = [name for name in found if not name.isidentifier()]
        if wrong:
            raise SpecError(f"{wrong[0]!r} is not a name; values are pushed and pulled by the names of variables.")
        if not found:
            raise SpecError("no name is given; write for instance w,b.")
        return found
