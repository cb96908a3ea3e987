"""Fetches Nsight Systems from Debian's ``non-free`` component into the user's cache, without root.

Nothing of the system is touched: apt works on a state of its own (``Dir::State`` and the rest), with the mirror of the
system's own sources and Debian's keyring, so every package is verified as usual. The packages are unpacked, not
installed: nsys needs ``target-linux-*`` and ``host-linux-*`` side by side, which Debian's packages do not put them
(see ``nsys_export.mend``).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from zeropeak.profile.apt_sources import Source, choose_source, find_keyring, read_codename, read_sources
from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.nsys_find import WAY_OUT, Nsys, inspect, install_folder, is_own, number, profile_args

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_TOOL: Final = ("nsight-systems", "nsight-systems-target")

# What nsys and its importer link to, beyond what any Debian has; the names since Debian 13 first.
_LIBRARIES: Final = (
    ("libssh-4",), ("libpfm4",), ("libelf1t64", "libelf1"), ("libssl3t64", "libssl3"), ("libgssapi-krb5-2",),
    ("libkrb5-3",), ("libk5crypto3",), ("libkrb5support0",), ("libcom-err2",), ("libkeyutils1",), ("zlib1g",),
)  # fmt: skip
# Only the versions of 2024 want it.
_OPTIONAL: Final = (("libarrow500",),)

# The graphical program, its data, old CUDA interfaces, and the exporter to formats other than sqlite: three quarters.
_DROPPED: Final = re.compile(
    r"host-linux-[^/]+/(Plugins|translations|resources|libexec|libQt|libicu|libexporter|libNvQtGui|libQtPropertyBrowser"
    r"|libTimelineWidget|nsys-ui|CrashReporter)|target-linux-[^/]+/(libcupti\.so\.(10\.|11\.[0-7])|libnvperf)"
)
_INSIDE: Final = re.compile(r"(?:^|/)((?:target|host)-linux-[^/]+)/(.+)$")
_LIBRARY_FILE: Final = re.compile(r"^\./(?:usr/)?lib/[^/]+/(lib[^/]+\.so[^/]*)$")
# nsys itself, not only its importer, loads these two.
_ALSO_FOR_TARGET: Final = ("libelf.so.1", "libz.so.1")

# Kept size over downloaded size, measured: 155 MB of 175 MB for 2022.4, 259 MB of 202 MB for the largest, 2024.2.
_KEPT_PER_BYTE: Final = 1.4
_APT_SECONDS: Final = 900.0


def fetch(
    cache: Path,
    say: Callable[[str], None],
    *,
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    temporary: Path = Path("/var/tmp"),
) -> Nsys:
    """Returns the fetched nsys; downloads it when the cache has none. Several may run at once: one works, others wait.

    Args:
        cache: ``nsys_find.cache_folder``.
        say: gets the progress, line by line.
        environ: environment for apt; this process's by default.
        root: stands for ``/`` where sources and keyrings are read.
        temporary: used in place of a cache whose path has a space.

    Raises:
        ZeropeakError: it is not to be had; the message says why and what to do instead.
    """
    environ = dict(os.environ if environ is None else environ)
    folder = install_folder(cache, temporary=temporary)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.parent != cache:
            folder.parent.chmod(0o700)
        if not is_own(folder):
            raise ZeropeakError(f"{folder} belongs to another user, or others may write there; remove it, or {WAY_OUT}")
        with _alone(folder, say):
            for version in sorted(folder.glob("[0-9]*"), key=lambda path: number(path.name), reverse=True):
                if isinstance(found := inspect(version / "bin" / "nsys", "fetched by zeropeak"), Nsys):
                    return found
            _tidy(folder)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
                return _fetch(folder, Path(work), say, environ, root)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ZeropeakError(
                f"{folder}: the disk is full; free 500 MB, set XDG_CACHE_HOME elsewhere, or {WAY_OUT}"
            ) from error
        raise ZeropeakError(
            f"{error.filename or folder}: {error.strerror}; set XDG_CACHE_HOME to a folder you can write, or {WAY_OUT}"
        ) from error


def _fetch(folder: Path, work: Path, say: Callable[[str], None], environ: dict[str, str], root: Path) -> Nsys:
    started = time.monotonic()
    for program in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(program, path=environ.get("PATH")) is None:
            raise ZeropeakError(
                f"no Nsight Systems found, and {program} is not there to fetch it from Debian; install "
                f"NVIDIA's package, or {WAY_OUT}"
            )
    chosen = choose_source(read_sources(root), read_codename(root))
    if chosen is None:
        raise ZeropeakError(
            "no Nsight Systems found, and apt's sources here are not Debian's, so it is not fetched; install "
            f"NVIDIA's package (Ubuntu: or `sudo apt install nsight-systems` from multiverse), or {WAY_OUT}"
        )
    source, suite = chosen
    keyring = find_keyring(source, root)
    if keyring is None:
        raise ZeropeakError(
            "no Nsight Systems found, and Debian's keyring is not here to verify its packages; "
            f"`sudo apt install debian-archive-keyring`, or {WAY_OUT}"
        )
    apt = _Apt(work, source, suite, keyring, environ)
    say(f"No Nsight Systems found: fetching it from Debian {suite} (main, non-free; {source.uri}), without root.")
    apt.update()
    packages = apt.choose()
    size_bytes = apt.download_bytes(packages)
    free_bytes = shutil.disk_usage(folder).free
    need_bytes = int(size_bytes * (1 + _KEPT_PER_BYTE))
    if free_bytes < need_bytes:
        raise ZeropeakError(
            f"{folder}: {free_bytes / 1e6:.0f} MB free, Nsight Systems needs {need_bytes / 1e6:.0f} MB while it is "
            f"fetched; free some, set XDG_CACHE_HOME elsewhere, or {WAY_OUT}"
        )
    say(f"  {len(packages)} packages, {size_bytes / 1e6:.0f} MB to download")
    debs = apt.download(packages)
    staging = work / "nsys"
    for deb in debs:
        _unpack(deb, staging, environ)
    _finish(staging)
    found = inspect(staging / "bin" / "nsys", "fetched by zeropeak")
    if isinstance(found, str):
        raise ZeropeakError(f"the nsys of Debian {suite} does not run here: {found}; {WAY_OUT}")
    _prove(found, work, environ)
    final = folder / found.version
    shutil.rmtree(final, ignore_errors=True)
    staging.rename(final)
    kept_bytes = sum(path.lstat().st_size for path in final.rglob("*") if not path.is_symlink())
    say(
        f"  Nsight Systems {found.version} is in {final} ({kept_bytes / 1e6:.0f} MB, "
        f"{time.monotonic() - started:.0f} s), for all your clones. To remove it: rm -r {final}"
    )
    moved = inspect(final / "bin" / "nsys", "fetched by zeropeak")
    if isinstance(moved, str):
        raise ZeropeakError(f"{final}: {moved}; {WAY_OUT}")
    return moved


class _Apt:
    """apt with a state of its own in ``work``."""

    def __init__(self, work: Path, source: Source, suite: str, keyring: Path, environ: dict[str, str]) -> None:
        self.suite = suite
        self.mirror = source.uri
        self._debs = work / "debs"
        for folder in ("lists/partial", "cache/archives/partial", "debs"):
            (work / folder).mkdir(parents=True)
        listing = work / "sources.list"
        listing.write_text(f"deb [signed-by={keyring}] {source.uri} {suite} main non-free\n")
        config = work / "apt.conf"
        # Read after the system's own settings, of which proxies must stay, and hooks must not run.
        config.write_text(
            "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n"
            "#clear APT::Update::Post-Invoke-Success;\n"
            "#clear Acquire::IndexTargets::deb::DEP-11;\n#clear Acquire::IndexTargets::deb::DEP-11-icons;\n"
            "#clear Acquire::IndexTargets::deb::DEP-11-icons-small;\n"
            "#clear Acquire::IndexTargets::deb::DEP-11-icons-large;\n"
            "#clear Acquire::IndexTargets::deb::DEP-11-icons-hidpi;\n"
            "#clear Acquire::IndexTargets::deb::DEP-11-icons-large-hidpi;\n"
            'Acquire::Languages "none";\nAcquire::Retries "2";\nAPT::Update::Error-Mode "any";\n'
            f'Dir::Etc::sourcelist "{listing}";\nDir::Etc::sourceparts "/dev/null";\n'
            'Dir::Etc::preferences "/dev/null";\n'
            f'Dir::Etc::preferencesparts "/dev/null";\nDir::State "{work}";\nDir::State::lists "{work}/lists";\n'
            # With the real status apt does not download what is installed.
            f'Dir::State::status "/dev/null";\nDir::Cache "{work}/cache";\n'
            # As root apt would download as _apt, who may not enter a private cache.
            'APT::Sandbox::User "root";\n'
        )
        self._config = str(config)
        self._environ = {**environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}

    def update(self) -> None:
        done = self._run("apt-get", "update")
        if done.returncode != 0:
            said = _complaint(done.stdout)
            if "non-free" in said or "skipping acquire" in said:
                raise ZeropeakError(f"{self.mirror} has no non-free component for {self.suite}: {said}; {WAY_OUT}")
            raise ZeropeakError(
                f"apt could not read {self.mirror} ({self.suite}), to fetch Nsight Systems: {said}; is there a "
                f"network, or a proxy to set? Else {WAY_OUT}"
            )

    def choose(self) -> list[str]:
        """Returns the names to download, ``package/suite``."""
        wanted = [*_TOOL, *(name for names in (*_LIBRARIES, *_OPTIONAL) for name in names)]
        listed = self._run("apt-cache", "madison", *wanted).stdout
        there = {line.split("|")[0].strip() for line in listed.splitlines() if "|" in line}
        if missing := [name for name in _TOOL if name not in there]:
            raise ZeropeakError(
                f"{self.mirror} has no {' and no '.join(missing)} for {self.suite} on this machine's architecture; "
                f"install Nsight Systems from NVIDIA's packages, or {WAY_OUT}"
            )
        packages = list(_TOOL)
        for names in (*_LIBRARIES, *_OPTIONAL):
            packages += [name for name in names if name in there][:1]
        return [f"{name}/{self.suite}" for name in packages]

    def download_bytes(self, packages: Sequence[str]) -> int:
        listed = self._run("apt-get", "download", "--print-uris", *packages)
        # 'URI' FILE SIZE HASH
        return sum(int(size) for size in re.findall(r"^'[^']+' \S+ (\d+)", listed.stdout, re.MULTILINE))

    def download(self, packages: Sequence[str]) -> list[Path]:
        done = self._run("apt-get", "download", *packages)
        debs = sorted(self._debs.glob("*.deb"))
        if done.returncode != 0 or len(debs) != len(packages):
            raise ZeropeakError(
                f"apt got {len(debs)} of the {len(packages)} packages of Nsight Systems from {self.mirror}: "
                f"{_complaint(done.stdout)}; try again, or {WAY_OUT}"
            )
        return debs

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [program, "--config-file", self._config, "--quiet", *arguments]
        try:
            return subprocess.run(
                command,
                cwd=self._debs,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_APT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ZeropeakError(f"{program} {arguments[0]} did not end in {_APT_SECONDS:.0f} s; {WAY_OUT}") from error


def _unpack(deb: Path, staging: Path, environ: Mapping[str, str]) -> None:
    """Takes what is needed out of one package: the tool's two folders, or a library."""
    packed = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE, env=dict(environ))
    assert packed.stdout is not None
    with packed.stdout, tarfile.open(fileobj=packed.stdout, mode="r|") as members:
        for member in members:
            if inside := _INSIDE.search(member.name):
                place = Path(inside[1], inside[2])
            elif library := _LIBRARY_FILE.match(member.name):
                place = Path("libraries", library[1])
            else:
                continue
            if _DROPPED.search(place.as_posix()) or ".." in place.parts:
                continue
            path = staging / place
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                path.symlink_to(Path(member.linkname).name if place.parts[0] == "libraries" else member.linkname)
            elif (content := members.extractfile(member) if member.isfile() else None) is not None:
                with path.open("wb") as file:
                    shutil.copyfileobj(content, file)
                path.chmod(0o755 if member.mode & 0o111 else 0o644)
    if packed.wait() != 0:
        raise ZeropeakError(f"dpkg-deb could not unpack {deb.name}; {WAY_OUT}")


def _finish(staging: Path) -> None:
    """Brings the unpacked parts into the layout in which nsys finds its importer, and the importer its libraries."""
    targets, hosts = sorted(staging.glob("target-linux-*")), sorted(staging.glob("host-linux-*"))
    if not targets or not hosts:
        raise ZeropeakError(f"Debian's nsight-systems packages hold no nsys and importer where they used to; {WAY_OUT}")
    target, host = targets[0], hosts[0]
    for library in sorted((staging / "libraries").glob("*")):
        path = host / library.name
        path.unlink(missing_ok=True)
        library.rename(path)
    (staging / "libraries").rmdir()
    for name in _ALSO_FOR_TARGET:
        if (host / name).exists():
            shutil.copyfile(host / name, target / name)
    # The importer asks for libssh.so; Debian's package points outside of what was unpacked.
    (host / "libssh.so").unlink(missing_ok=True)
    (host / "libssh.so").symlink_to("libssh.so.4")
    (staging / "bin").mkdir()
    (staging / "bin" / "nsys").symlink_to(Path("..") / target.name / "nsys")


def _prove(nsys: Nsys, work: Path, environ: Mapping[str, str]) -> None:
    """Profiles a program that does nothing: only then is it known that the importer finds all its libraries."""
    report = work / "proof"
    done = subprocess.run(
        [*profile_args(nsys, report, cuda=False), "true"],
        env={**environ, "TMPDIR": str(work)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    if not Path(f"{report}.nsys-rep").is_file():
        lines = [line for line in re.split(r"[\r\n]+", done.stdout) if line.strip() and "%" not in line]
        raise ZeropeakError(
            f"Nsight Systems {nsys.version} was fetched, but wrote no report in a trial run: "
            f"{lines[-1].strip() if lines else f'exit status {done.returncode}'}; {WAY_OUT}"
        )


@contextmanager
def _alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        _lock(lock, say)
        yield


def _lock(lock: IO[str], say: Callable[[str], None]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Another zeropeak is fetching Nsight Systems; waiting for it.")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _tidy(folder: Path) -> None:
    """Removes what a killed fetch left. Called under the lock, so nobody is at work there."""
    for left in folder.glob(".fetch-*"):
        shutil.rmtree(left, ignore_errors=True)


def _complaint(output: str) -> str:
    """Returns apt's first error line: the later ones say only that something failed."""
    lines = [line.strip() for line in output.splitlines()]
    for mark in ("E:", "Err:", "W:"):
        for line in lines:
            if line.startswith(mark):
                return line
    return lines[-1] if lines else "no message"
