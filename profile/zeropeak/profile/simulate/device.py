"""The device that stands for the GPU: PyTorch's slot for outside backends, with nothing behind it.

Fake tensors of device ``cuda`` end the process in a CPU build of PyTorch: autograd asks for a device guard that such a
build lacks. The outside slot takes a guard written in Python, so autograd runs; moves between it and the CPU are moves
between two devices, as on a GPU. ``docs/decisions/simulated-device.md`` has what else was tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.errors import ZeropeakError

if TYPE_CHECKING:
    import torch

TYPE: Final = "simulated"
NAME: Final = "simulated:0"


class DeviceModule:
    """What PyTorch looks for at ``torch.simulated``: one device that is always there."""

    @staticmethod
    def is_initialized() -> bool:
        """Nothing needs to be started."""
        return True

    @staticmethod
    def is_available() -> bool:
        """It is always there."""
        return True

    @staticmethod
    def current_device() -> int:
        """The only one."""
        return 0

    @staticmethod
    def device_count() -> int:
        """One."""
        return 1

    @staticmethod
    def set_device(device: object) -> None:
        """There is no other."""

    @staticmethod
    def synchronize(device: object = None) -> None:
        """Nothing runs behind."""

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Values do not exist here."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Half precisions that autocast may use."""
        import torch

        return [torch.float16, torch.bfloat16]


def register() -> torch.device:
    """Give PyTorch the device, for the life of this process: it cannot be taken back.

    Raises:
        ZeropeakError: this PyTorch takes no device from Python.
    """
    import torch
    from torch.utils import backend_registration

    setup: Any = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        raise ZeropeakError(
            f"torch {torch.__version__} cannot simulate a device (it takes none from Python); predict needs torch 2.10 "
            "or newer"
        )
    if not hasattr(torch, TYPE):
        setup(TYPE, backend_module=DeviceModule())
    return torch.device(TYPE, 0)
