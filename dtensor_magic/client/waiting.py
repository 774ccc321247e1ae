"""Wait for devices with the interpreter's lock released, where TensorFlow would wait with it held.

Printing a tensor and unpacking a DTensor wait for the operations that make it inside a call that keeps Python's
lock (TensorFlow 2.21). If that wait is for a peer that never comes, no thread of the process can answer its
driver, and nothing but a kill ends it. So both first wait by ``context.async_wait``, which lets the lock go.
"""

from __future__ import annotations

import functools
from typing import Any


def release_lock_while_waiting() -> None:
    """Have this process's TensorFlow do so from now on."""
    from tensorflow.dtensor.python import dtensor_device
    from tensorflow.python.framework import ops

    ops.value_text = _after_waiting(ops.value_text)
    dtensor_device.DTensorDevice.unpack = _after_waiting(dtensor_device.DTensorDevice.unpack)


def _after_waiting(function: Any) -> Any:
    @functools.wraps(function)
    def waited(*args: Any, **kwargs: Any) -> Any:
        from tensorflow.python.eager import context

        if context.executing_eagerly():
            context.async_wait()
        return function(*args, **kwargs)

    return waited
