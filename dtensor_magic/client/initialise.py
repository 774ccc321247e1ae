"""The one place that calls TensorFlow's ``initialize_accelerator_system``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ..plan import ClientSpec
from ..state import DeviceState


@dataclass(frozen=True)
class Initialised:
    """What a client has when DTensor is up.

    Attributes
    ----------
    device_type : str
        The type that TensorFlow says it initialised.
    mesh : dtensor.Mesh or None
    devices : list of DeviceState
        This client's devices.
    """

    device_type: str
    mesh: Any
    devices: list[DeviceState]

    def names(self, client_id: int, num_clients: int) -> dict[str, Any]:
        """Return what a client's namespace holds from the start."""
        import tensorflow as tf
        from tensorflow.experimental import dtensor

        names = {
            "tf": tf,
            "dtensor": dtensor,
            "client_id": client_id,
            "num_clients": num_clients,
            "device_type": self.device_type,
        }
        return names if self.mesh is None else {**names, "mesh": self.mesh}

    def device_facts(self) -> list[dict[str, Any]]:
        """Return the devices as JSON can hold them."""
        return [asdict(device) for device in self.devices]


def initialise(spec: ClientSpec, before_call: Callable[[], None] = lambda: None) -> Initialised:
    """Set the ``DTENSOR_*`` variables and initialise DTensor in this process.

    Parameters
    ----------
    spec : ClientSpec
    before_call : callable
        Called just before TensorFlow opens its port, to let go of the port's reservation.

    Raises
    ------
    ValueError, RuntimeError, tf.errors.OpError
        As TensorFlow raises them.
    """
    for name, value in spec.variables().items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    from tensorflow.experimental import dtensor

    before_call()
    options = spec.options
    device_type = dtensor.initialize_accelerator_system(
        spec.device_type,
        enable_coordination_service=options.coordination_service,
        num_logical_cpu_devices=options.logical_cpus,
        experimental_reset_context=options.reset_context,
        experimental_enable_megcore=options.megcore,
    )
    mesh = make_mesh(spec.mesh, device_type) if spec.mesh else None
    return Initialised(device_type, mesh, local_devices(device_type, spec, mesh))


def make_mesh(dims: tuple[tuple[str, int], ...], device_type: str) -> Any:
    """Create the mesh ``dims`` (name, size) over all devices of all clients."""
    from tensorflow.experimental import dtensor

    return dtensor.create_distributed_mesh(list(dims), device_type=device_type)


def local_devices(device_type: str, spec: ClientSpec, mesh: Any) -> list[DeviceState]:
    """Return this client's devices, with their places in `mesh` where there is one."""
    from tensorflow.experimental import dtensor

    names = [device.to_string() for device in dtensor.local_devices(device_type)]
    first = spec.client_id * len(names)
    places: list[dict[str, int]] = [{} for _ in names]
    if mesh is not None:
        # The mesh counts devices client by client (create_distributed_mesh).
        strides, step = [], 1
        for name, size in reversed(spec.mesh):
            strides.append((name, size, step))
            step *= size
        places = [
            {name: (first + index) // stride % size for name, size, stride in reversed(strides)}
            for index in range(len(names))
        ]
    return [
        DeviceState(name=name, global_id=first + index, type=device_type, coordinates=places[index])
        for index, name in enumerate(names)
    ]
