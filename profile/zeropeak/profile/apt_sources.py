"""The system's own apt sources: which mirror and suite of Debian this machine uses, and with which keyring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Source:
    """One source of apt: a mirror with the suites and components that the system uses.

    Args:
        uri: the mirror.
        suites: e.g. ``("bookworm", "bookworm-updates")``.
        components: e.g. ``("main",)``.
        signed_by: keyring named in the source, or None.
    """

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None


def read_sources(root: Path) -> list[Source]:
    """Returns the enabled binary sources of apt: ``sources.list``, ``*.list`` and ``*.sources``, in that order."""
    apt = root / "etc/apt"
    found: list[Source] = []
    for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))):
        if path.is_file():
            found += filter(None, map(_one_line, path.read_text(errors="replace").splitlines()))
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            found += _stanza(stanza)
    return found


def choose_source(sources: Sequence[Source], codename: str | None) -> tuple[Source, str] | None:
    """Returns Debian's main archive among ``sources`` and the suite to use there, or None.

    Debian's are told by the keyring, else by the mirror's path ending in ``debian``; its security archive has no
    non-free packages of use. The suite is the system's own, else the first that is no pocket (``-updates`` etc.).
    """
    for source in sources:
        path = source.uri.rstrip("/").rsplit("/", 1)[-1]
        signed = "debian-archive" in (source.signed_by or "debian-archive")
        if path != "debian" and not (source.signed_by and signed and path != "debian-security"):
            continue
        if not signed:
            continue
        suites = [suite for suite in source.suites if "/" not in suite and "-" not in suite]
        if suites:
            return source, codename if codename in suites else suites[0]
    return None


def find_keyring(source: Source, root: Path) -> Path | None:
    """Returns the keyring file that the source names, else Debian's own, or None when neither is there."""
    named = [Path(source.signed_by)] if source.signed_by and source.signed_by.startswith("/") else []
    for path in (*named, root / "usr/share/keyrings/debian-archive-keyring.gpg"):
        if path.is_file():
            return path
    return None


def read_codename(root: Path) -> str | None:
    """Returns the release's name, e.g. ``bookworm``, from ``/etc/os-release``."""
    release = root / "etc/os-release"
    named = (
        re.search(r'^VERSION_CODENAME="?([\w.]+)"?$', release.read_text(), re.MULTILINE) if release.is_file() else None
    )
    return named[1] if named else None


def _one_line(line: str) -> Source | None:
    """``deb [signed-by=KEYRING arch=amd64] URI SUITE COMPONENT...``"""
    matched = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
    if matched is None:
        return None
    options, uri, suite, components = matched.groups()
    signed_by = re.search(r"signed-by=(\S+)", options or "")
    return Source(uri, (suite,), tuple(components.split()), signed_by[1] if signed_by else None)


def _stanza(stanza: str) -> list[Source]:
    """One deb822 stanza; it may name several mirrors."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
        return []
    suites, components = tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split())
    return [Source(uri, suites, components, fields.get("signed-by")) for uri in fields.get("uris", "").split()]
