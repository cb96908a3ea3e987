"""Fetching nsys: apt's sources, the failures and their texts. A stand-in for apt serves packages built here."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from zeropeak.profile.apt_sources import choose_source, read_sources
from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.nsys_fetch import fetch

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEBIAN = f"""\
Types: deb deb-src
# a comment
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: {KEYRING}

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main
Signed-By: {KEYRING}
"""
NSYS = """#!/bin/sh
case $1 in
--version) echo "NVIDIA Nsight Systems version 2022.4.2.1-df9881f" ;;
*) for a; do case $a in --output=*) echo report > "${a#--output=}.nsys-rep" ;; esac; done ;;
esac
"""
APT = """#!/bin/sh
echo "$*" >> "$FAKE/calls"
[ ! -e "$FAKE/fail-$4" ] || { cat "$FAKE/fail-$4"; exit 100; }
case "$*" in
*--print-uris*) echo "'http://mirror.test/a.deb' a.deb ${SIZE:-4096} SHA256:0" ;;
*madison*) for p in nsight-systems nsight-systems-target libelf1; do echo " $p | 1.0 | http://mirror.test"; done ;;
*download*) cp "$FAKE"/debs/*.deb . ;;
esac
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("etc/apt/sources.list.d", "usr/share/keyrings"):
        (root / folder).mkdir(parents=True)
    (root / "etc/apt/sources.list.d/debian.sources").write_text(DEBIAN.replace(KEYRING, str(root / KEYRING[1:])))
    (root / KEYRING[1:]).touch()
    (root / "etc/os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    return root


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A PATH whose apt serves three packages laid out as Debian's."""
    fake = tmp_path / "fake"
    lib = "usr/lib/x86_64-linux-gnu"
    packages = {
        "nsight-systems": {
            "usr/lib/nsight-systems/host-linux-x64/QdstrmImporter": "importer",
            "usr/lib/nsight-systems/host-linux-x64/libQt6Gui.so.6": "big",
            "usr/lib/nsight-systems/host-linux-x64/libssh.so": "../../x86_64-linux-gnu/libssh.so.4",
        },
        "nsight-systems-target": {f"{lib}/nsight-systems/target-linux-x64/nsys": NSYS, "usr/share/doc/nsys/c": "text"},
        "libelf1": {f"{lib}/libelf-0.188.so": "elf", f"{lib}/libelf.so.1": "libelf-0.188.so"},
    }
    for name, files in packages.items():
        tree = fake / "trees" / name
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@t.test>\nDescription: test\n"
        )
        for path, content in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            if path.endswith(("libssh.so", "libelf.so.1")):
                (tree / path).symlink_to(content)
            else:
                (tree / path).write_text(content)
                (tree / path).chmod(0o755)
        (fake / "debs").mkdir(exist_ok=True)
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", tree, fake / "debs" / f"{name}.deb"],
            check=True,
            capture_output=True,
        )
    (fake / "bin").mkdir()
    for program in ("apt-get", "apt-cache"):
        (fake / "bin" / program).write_text(APT)
        (fake / "bin" / program).chmod(0o755)
    return {**os.environ, "PATH": f"{fake / 'bin'}:{os.environ['PATH']}", "FAKE": str(fake)}


def test_packages_are_unpacked_side_by_side_without_the_graphical_parts(
    tmp_path: Path, root: Path, environ: dict[str, str]
) -> None:
    said: list[str] = []
    nsys = fetch(tmp_path / "cache", said.append, environ=environ, root=root)
    folder = tmp_path / "cache/nsys/2022.4.2.1"
    assert (nsys.path, nsys.importer) == (folder / "bin/nsys", folder / "host-linux-x64/QdstrmImporter")
    kept = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
    assert kept == [
        "bin/nsys",
        "host-linux-x64/QdstrmImporter",
        "host-linux-x64/libelf-0.188.so",
        "host-linux-x64/libelf.so.1",
        "host-linux-x64/libssh.so",
        "target-linux-x64/libelf.so.1",
        "target-linux-x64/nsys",
    ]
    assert (folder / "target-linux-x64/libelf.so.1").read_text() == "elf"
    assert "from Debian bookworm (main, non-free; http://mirror.test/debian)" in said[0]
    assert f"rm -r {folder}" in said[-1]
    assert [path.name for path in (tmp_path / "cache/nsys").iterdir() if path.name != ".lock"] == ["2022.4.2.1"]


def test_two_at_once_download_once(tmp_path: Path, root: Path, environ: dict[str, str]) -> None:
    found: list[Path] = []

    def work() -> None:
        found.append(fetch(tmp_path / "cache", lambda line: None, environ=environ, root=root).path)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "cache/nsys/2022.4.2.1/bin/nsys"] * 3
    calls = Path(environ["FAKE"], "calls").read_text()
    assert calls.count(" update") == 1


def test_a_cache_with_a_space_moves_to_a_private_folder(tmp_path: Path, root: Path, environ: dict[str, str]) -> None:
    nsys = fetch(tmp_path / "my cache", lambda line: None, environ=environ, root=root, temporary=tmp_path)
    private = tmp_path / f"zeropeak-{os.getuid()}"
    assert nsys.path == private / "nsys/2022.4.2.1/bin/nsys"
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("command", "output", "text"),
    [
        (
            "update",
            "Err:1 http://mirror.test\nE: Could not resolve 'mirror.test'\n",
            "Could not resolve.*is there a network",
        ),
        (
            "update",
            "W: skipping acquire of configured file 'non-free/binary'\n",
            "has no non-free component for bookworm",
        ),
        ("madison", "", "has no nsight-systems and no nsight-systems-target for bookworm"),
        (
            "download",
            "E: You don't have enough free space\n",
            "got 0 of the 3 packages.*enough free space",
        ),
    ],
)
def test_what_apt_cannot_do_is_said_with_the_way_out(
    tmp_path: Path, root: Path, environ: dict[str, str], command: str, output: str, text: str
) -> None:
    Path(environ["FAKE"], f"fail-{command}").write_text(output)
    with pytest.raises(ZeropeakError, match=rf"(?s){text}.*NSYS=/path.*`torch`"):
        fetch(tmp_path / "cache", lambda line: None, environ=environ, root=root)
    assert list((tmp_path / "cache/nsys").iterdir()) == [tmp_path / "cache/nsys/.lock"]


def test_without_apt_the_way_out_is_named(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ZeropeakError, match=r"apt-get is not there.*NVIDIA's package.*NSYS=/path.*`torch`"):
        fetch(tmp_path / "cache", lambda line: None, environ={"PATH": str(tmp_path)}, root=root)


def test_other_distributions_are_not_served(tmp_path: Path, root: Path, environ: dict[str, str]) -> None:
    (root / "etc/apt/sources.list.d/debian.sources").unlink()
    (root / "etc/apt/sources.list").write_text("deb http://archive.test/ubuntu noble main universe\n")
    with pytest.raises(ZeropeakError, match=r"sources here are not Debian's.*multiverse.*`torch`"):
        fetch(tmp_path / "cache", lambda line: None, environ=environ, root=root)


def test_a_missing_keyring_is_never_worked_around(tmp_path: Path, root: Path, environ: dict[str, str]) -> None:
    (root / KEYRING[1:]).unlink()
    with pytest.raises(ZeropeakError, match="debian-archive-keyring"):
        fetch(tmp_path / "cache", lambda line: None, environ=environ, root=root)


def test_too_little_space_is_said_before_the_download(tmp_path: Path, root: Path, environ: dict[str, str]) -> None:
    environ["SIZE"] = str(10**17)
    with pytest.raises(ZeropeakError, match=r"MB free, Nsight Systems needs \d+ MB.*XDG_CACHE_HOME"):
        fetch(tmp_path / "cache", lambda line: None, environ=environ, root=root)
    assert "download nsight" not in Path(environ["FAKE"], "calls").read_text()


def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path, root: Path, environ: dict[str, str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ZeropeakError, match=r"Not a directory; set XDG_CACHE_HOME.*`torch`"):
        fetch(tmp_path / "file/cache", lambda line: None, environ=environ, root=root)


def test_an_nsys_whose_importer_fails_is_not_kept(tmp_path: Path, root: Path, environ: dict[str, str]) -> None:
    tree = Path(environ["FAKE"], "trees/nsight-systems-target")
    nsys = tree / "usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys"
    nsys.write_text(NSYS.replace("echo report >", "echo The importer binary was not found. ||"))
    subprocess.run(
        ["dpkg-deb", "--build", tree, Path(environ["FAKE"], "debs/nsight-systems-target.deb")],
        check=True,
        capture_output=True,
    )
    with pytest.raises(ZeropeakError, match=r"wrote no report in a trial run: The importer binary was not found"):
        fetch(tmp_path / "cache", lambda line: None, environ=environ, root=root)
    assert not (tmp_path / "cache/nsys/2022.4.2.1").exists()


def test_debians_source_is_chosen_by_keyring_or_path(tmp_path: Path, root: Path) -> None:
    sources = read_sources(root)
    assert [(s.uri, s.suites) for s in sources] == [
        ("http://mirror.test/debian", ("bookworm", "bookworm-updates")),
        ("http://mirror.test/debian-security", ("bookworm-security",)),
    ]
    chosen = choose_source(sources, "bookworm")
    assert chosen is not None
    assert (chosen[0].uri, chosen[1]) == ("http://mirror.test/debian", "bookworm")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://m.test/debian bookworm main # usual", ("http://m.test/debian", "bookworm")),
        (
            "deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] http://m.test/x stable main",
            ("http://m.test/x", "stable"),
        ),
        ("deb [signed-by=/k/nodesource.gpg] http://m.test/debian nodistro main", None),
        ("deb http://m.test/debian bookworm-updates main", None),
        ("deb-src http://m.test/debian bookworm main", None),
        ("# deb http://m.test/debian bookworm main", None),
    ],
)
def test_one_line_sources(tmp_path: Path, line: str, expected: tuple[str, str] | None) -> None:
    (tmp_path / "etc/apt").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text(f"{line}\n")
    chosen = choose_source(read_sources(tmp_path), "bookworm")
    assert (chosen and (chosen[0].uri, chosen[1])) == expected


def test_disabled_stanzas_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list.d/a.sources").write_text(f"Enabled: no\n{DEBIAN}")
    assert [source.suites for source in read_sources(tmp_path)] == [("bookworm-security",)]
