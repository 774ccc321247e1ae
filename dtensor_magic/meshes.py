"""The mesh that a user asks for: ``batch=4,model=2``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .errors import SpecError

_DIMENSION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(-?[0-9]+)")
_RESERVED = {"unsharded", "match"}


@dataclass(frozen=True)
class MeshSpec:
    """Dimensions of a mesh, in order; at most one has the size -1, which means "what is left".

    Attributes
    ----------
    dims : tuple of (str, int)
    """

    dims: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> MeshSpec:
        """Read ``name=size,name=size``.

        Raises
        ------
        SpecError
            For a malformed or repeated dimension, a name that DTensor reserves, a size of 0, or two -1s.
        """
        dims: list[tuple[str, int]] = []
        for part in text.split(","):
            match = _DIMENSION.fullmatch(part.strip())
            if match is None:
                raise SpecError(f"mesh: {part.strip()!r} is not name=size; write for instance batch=4,model=2.")
            name, size = match.group(1), int(match.group(2))
            if name in _RESERVED:
                raise SpecError(f"mesh: {name!r} is a word of DTensor's own; give the dimension another name.")
            if name in dict(dims):
                raise SpecError(f"mesh: dimension {name!r} stands twice.")
            if size == 0 or size < -1:
                raise SpecError(f"mesh: {name}={size} is no size; it is 1 or more, or -1 once for what is left.")
            dims.append((name, size))
        if sum(size == -1 for _, size in dims) > 1:
            raise SpecError("mesh: only one dimension may be -1.")
        return cls(tuple(dims))

    def resolve(self, devices_per_client: int, clients: int) -> MeshSpec:
        """Return the mesh with the -1 filled in, for that many devices.

        Raises
        ------
        SpecError
            If the mesh does not have exactly ``devices_per_client * clients`` devices.
        """
        devices = devices_per_client * clients
        known = math.prod(size for _, size in self.dims if size != -1)
        plural = "s" * (clients != 1)
        have = f"{clients} client{plural} with {devices_per_client} device{'s' * (devices_per_client != 1)} each"
        if any(size == -1 for _, size in self.dims):
            if devices % known:
                raise SpecError(
                    f"mesh: {self} cannot be filled: {have}, {devices} in all, do not divide by {known}."
                )
            return MeshSpec(tuple((name, devices // known if size == -1 else size) for name, size in self.dims))
        if known != devices:
            raise SpecError(f"mesh: {self} has {known} devices, but {have} make {devices}; the two must be equal.")
        return self

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.dims)
