"""Make the machine ready: Nsight Systems is found, or fetched into your cache without root.

./launch.sh setup also makes the Python environment.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from zeropeak.profile.errors import ZeropeakError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from zeropeak.profile.nsys_find import Nsys

NAME: Final = "setup"
SUMMARY: Final = "find Nsight Systems, or fetch it without root"
EXAMPLE: Final = "zeropeak setup"


def configure(parser: argparse.ArgumentParser) -> None:
    """The verb takes no arguments."""


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    nsys = need_nsys(os.environ)
    print(f"nsys {nsys.version} from {nsys.origin}: {nsys.path}")
    return 0


def need_nsys(environ: Mapping[str, str]) -> Nsys:
    """Nsight Systems of this machine, fetched when it has none, mended when its parts lie too far apart.

    Raises:
        ZeropeakError: there is none and it cannot be had, or the installed nvtx package would lose every range; says
            the way out.
    """
    from importlib.metadata import version

    from zeropeak.profile import nsys_export, nsys_fetch, nsys_find

    cache = nsys_find.cache_folder(environ)
    found = nsys_find.find(environ) or nsys_fetch.fetch(cache, print)
    if nsys_find.nvtx_too_new(version("nvtx"), found.version):
        raise ZeropeakError(nsys_find.nvtx_too_new_message(version("nvtx"), found.version))
    return nsys_export.mend(found, nsys_find.install_folder(cache))
