"""Finds an Nsight Systems that runs, and says how to call it.

Nothing is fetched here (see :mod:`zeropeak.profile.nsys_fetch`), and nothing is written.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.profile.errors import UsageError, ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WAY_OUT: Final = "set NSYS=/path/to/nsys, or capture with torch.profiler instead: the verb `torch` in place of `nsys`"
"""Ends every message about an nsys that is not to be had."""

IMPORTER: Final = "QdstrmImporter"

# Where the importer lies, seen from the folder above the one that holds nsys: NVIDIA's packages, then Nsight Compute's.
_IMPORTER_FOLDERS: Final = ("host-linux-*", "linux-desktop-*", "host/linux-desktop-*")

_VERSION_SECONDS: Final = 20.0
_SPACE: Final = "nsys cannot launch programs from a path with a space (`execve failed`)"

_NVTX_WITH_QUERY: Final = (0, 2, 12)
_LAST_NSYS_WITHOUT_ANSWER: Final = (2024, 2)


@dataclass(frozen=True)
class Nsys:
    """One Nsight Systems that answered ``--version``.

    Args:
        path: the executable as found (links kept).
        version: dotted number, e.g. ``2022.4.2.1``.
        importer: ``QdstrmImporter`` beside it; None when the installation shows none, which is usual for wrapper
            scripts, and loses the report on Debian's own layout.
        origin: where it was found, for people.
    """

    path: Path
    version: str
    importer: Path | None
    origin: str


def find(environ: Mapping[str, str], *, root: Path = Path("/"), skipped: list[str] | None = None) -> Nsys | None:
    """Returns the first nsys that runs, or None.

    Order: ``NSYS``, ``PATH``, the CUDA toolkit, ``/opt/nvidia/nsight-systems`` (newest first), Nsight Compute's
    folder, the user's cache.

    Args:
        environ: the environment to look in.
        root: stands for ``/``.
        skipped: gets a line for every candidate that was passed over, with the reason.

    Raises:
        UsageError: ``NSYS`` is set to something that does not run.
    """
    if override := environ.get("NSYS"):
        tried = inspect(Path(override), "NSYS")
        if isinstance(tried, str):
            raise UsageError(f"NSYS={override}: {tried}; name the nsys executable, or unset NSYS to search for one")
        return tried
    for path, origin in _candidates(environ, root):
        tried = inspect(path, origin)
        if isinstance(tried, Nsys):
            return tried
        if skipped is not None:
            skipped.append(f"{path} ({origin}): {tried}")
    return None


def require(environ: Mapping[str, str], *, root: Path = Path("/")) -> Nsys:
    """Like :func:`find`, for when there must be one.

    Raises:
        ZeropeakError: there is none; the message lists what was tried.
    """
    skipped: list[str] = []
    if found := find(environ, root=root, skipped=skipped):
        return found
    tried = f" Passed over: {'; '.join(skipped)}." if skipped else ""
    raise ZeropeakError(f"no Nsight Systems (nsys) found.{tried} Fetch one with `./launch.sh setup`; or {WAY_OUT}")


def inspect(path: Path, origin: str) -> Nsys | str:
    """Returns the nsys at ``path``, or the reason why it is none."""
    if not path.is_file():
        return "no such file"
    if not os.access(path, os.X_OK):
        return "not executable"
    if re.search(r"\s", str(path.resolve())):
        return _SPACE
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_SECONDS, check=False
        )
    except OSError as error:
        return f"does not run ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"does not answer --version in {_VERSION_SECONDS:.0f} s"
    version = re.search(r"version\s+(\d+(?:\.\d+)+)", answer.stdout)
    if answer.returncode != 0 or version is None:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        return f"--version fails ({said[-1] if said else f'exit status {answer.returncode}'})"
    return Nsys(path.absolute(), version[1], _importer(path), origin)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns the folder for what all clones share, ``$XDG_CACHE_HOME/zeropeak`` or ``~/.cache/zeropeak``. Not made."""
    named = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    base = Path(named) if named.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".cache"
    return base / "zeropeak"


def install_folder(cache: Path, *, temporary: Path = Path("/var/tmp")) -> Path:
    """Returns where fetched versions of nsys lie, one folder each. Not made.

    nsys cannot run from a path with a space; then it is a folder of this user's in ``temporary``, which, unlike
    ``/tmp``, outlives a reboot.
    """
    if re.search(r"\s", str(cache)):
        return temporary / f"zeropeak-{os.getuid()}" / "nsys"
    return cache / "nsys"


def is_own(folder: Path) -> bool:
    """Tells whether only this user and root could have put programs into ``folder``.

    ``/var/tmp`` is open to everyone, who could leave a ready-made "nsys" there for others to run.
    """
    for path in (folder, folder.parent):
        try:
            status = path.lstat()
        except OSError:
            return False
        # A link of one's own is fine: people move their cache to a larger disk. Its mode says nothing.
        if status.st_uid not in (0, os.getuid()):
            return False
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & stat.S_IWOTH:
            return False
    return True


def number(version: str) -> tuple[int, ...]:
    """Returns a dotted version for comparing: ``2022.4.2.1-df98`` -> ``(2022, 4, 2, 1)``."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("-")[0]))


def nvtx_too_new(nvtx_version: str, nsys_version: str) -> bool:
    """Tells whether nsys will record none of the Python package's ranges, without a word from either.

    nvtx 0.2.12 and newer ask ``nvtxDomainIsEnabled``. nsys 2022.4, 2023.4 and 2024.2 do not answer, and nvtx then
    turns every domain into a dummy; 2025.3.1 answers (all measured). For what lies between, ranges are checked at run
    time.
    """
    return number(nvtx_version)[:3] >= _NVTX_WITH_QUERY and number(nsys_version)[:2] <= _LAST_NSYS_WITHOUT_ANSWER


def nvtx_too_new_message(nvtx_version: str, nsys_version: str) -> str:
    """Returns what to tell the user when :func:`nvtx_too_new` holds."""
    return (
        f"nvtx {nvtx_version} records nothing under nsys {nsys_version}: it asks for nvtxDomainIsEnabled, which nsys "
        "answers from 2025.3 on; install nvtx==0.2.11, or set NSYS=/path to a newer nsys"
    )


def profile_args(nsys: Nsys, output: Path, cuda: bool) -> list[str]:
    """Returns the command line up to the program to profile.

    Args:
        nsys: what to run.
        output: the report's path without ``.nsys-rep``. nsys replaces ``%h``, ``%p``, ``%q{...}`` in it.
        cuda: trace CUDA too, with the driver's allocations (segments: the *reserved* curve).
    """
    return [
        str(nsys.path),
        "profile",
        "--trace=nvtx,cuda" if cuda else "--trace=nvtx",
        # CPU samples and context switches need perf_event rights, and nothing here reads them.
        "--sample=none",
        "--cpuctxsw=none",
        *(["--cuda-memory-usage=true"] if cuda else []),
        "--force-overwrite=true",
        f"--output={output}",
    ]


def _candidates(environ: Mapping[str, str], root: Path) -> Iterator[tuple[Path, str]]:
    if on_path := shutil.which("nsys", path=environ.get("PATH", "")):
        yield Path(on_path), "PATH"
    toolkits = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    for toolkit in (*toolkits, root / "usr/local/cuda", *_newest_first(root / "usr/local", "cuda-*")):
        yield from _existing(toolkit, ("bin/nsys",), "CUDA toolkit")
    for product in ("nsight-systems", "nsight-systems-cli"):
        for folder in _newest_first(root / "opt/nvidia" / product, "*"):
            yield from _existing(folder, ("bin/nsys", "nsys", "target-linux-*/nsys"), f"/opt/nvidia/{product}")
    for folder in _newest_first(root / "opt/nvidia/nsight-compute", "*"):
        yield from _existing(folder, ("host/target-linux-*/nsys",), "Nsight Compute")
    cache = cache_folder(environ)
    fetched = install_folder(cache)
    # A cache that the user named is the user's to trust; /var/tmp is open to everyone.
    for folder in _newest_first(fetched, "[0-9]*") if fetched.parent == cache or is_own(fetched) else []:
        yield from _existing(folder, ("bin/nsys",), "fetched by zeropeak")


def _existing(folder: Path, patterns: tuple[str, ...], origin: str) -> Iterator[tuple[Path, str]]:
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            yield path, origin


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    versioned = [path for path in folder.glob(pattern) if re.search(r"\d", path.name) and not path.name.startswith(".")]
    return sorted(versioned, key=lambda path: number(path.name), reverse=True)


def _importer(nsys: Path) -> Path | None:
    """Follows the links from ``nsys`` one by one: Debian keeps the importer beside one that lies in the middle."""
    seen: set[Path] = set()
    hop = nsys.absolute()
    while hop not in seen:
        seen.add(hop)
        for base in (hop.parent.resolve().parent, hop.parent.parent):
            for pattern in _IMPORTER_FOLDERS:
                for importer in sorted(base.glob(f"{pattern}/{IMPORTER}")):
                    return importer
        if hop.is_symlink():
            hop = Path(os.path.normpath(hop.parent / hop.readlink()))
    return None
