"""Finding nsys: the order, what is passed over, and the trap of a too new nvtx."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zeropeak.profile.errors import UsageError, ZeropeakError
from zeropeak.profile.nsys_find import (
    Nsys,
    cache_folder,
    find,
    install_folder,
    is_own,
    nvtx_too_new,
    nvtx_too_new_message,
    profile_args,
    require,
)


def put_nsys(path: Path, version: str, importer: Path | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'NVIDIA Nsight Systems version {version}-df9881f'\n")
    path.chmod(0o755)
    if importer:
        importer.parent.mkdir(parents=True, exist_ok=True)
        importer.touch()
    return path


def test_the_order_is_override_path_toolkit_opt_compute_cache(tmp_path: Path) -> None:
    root, cache = tmp_path / "root", tmp_path / "cache"
    environ = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(cache), "CUDA_HOME": str(tmp_path / "home-cuda")}
    places = [
        put_nsys(tmp_path / "elsewhere/nsys", "2025.5.1"),
        put_nsys(tmp_path / "bin/nsys", "2021.1.1"),
        put_nsys(tmp_path / "home-cuda/bin/nsys", "2022.1.1"),
        put_nsys(root / "usr/local/cuda-12.9/bin/nsys", "2023.1.1"),
        put_nsys(root / "usr/local/cuda-12.10/bin/nsys", "2023.1.2"),
        put_nsys(root / "opt/nvidia/nsight-systems/2024.10.1/bin/nsys", "2024.10.1"),
        put_nsys(root / "opt/nvidia/nsight-systems/2024.9.1/target-linux-x64/nsys", "2024.9.1"),
        put_nsys(root / "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys", "2025.3.1"),
        put_nsys(cache / "zeropeak/nsys/2022.4.2.1/bin/nsys", "2022.4.2.1"),
    ]
    found = []
    environ["NSYS"] = str(places[0])
    for _ in places:
        nsys = find(environ, root=root)
        assert nsys is not None
        found.append(nsys.path)
        nsys.path.unlink()
        environ.pop("NSYS", None)
    assert found == [*places[:3], places[4], places[3], *places[5:]]
    assert find(environ, root=root) is None


def test_an_override_that_does_not_run_is_a_usage_error(tmp_path: Path) -> None:
    broken = put_nsys(tmp_path / "nsys", "1.0")
    broken.write_text("#!/bin/sh\necho 'libelf.so.1: cannot open shared object file' >&2\nexit 127\n")
    with pytest.raises(UsageError, match=r"NSYS=.*libelf.so.1: cannot open"):
        find({"NSYS": str(broken)}, root=tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        find({"NSYS": str(tmp_path / "nowhere")}, root=tmp_path)
    broken.chmod(0o644)
    with pytest.raises(UsageError, match="not executable"):
        find({"NSYS": str(broken)}, root=tmp_path)


def test_candidates_that_do_not_run_are_passed_over_with_the_reason(tmp_path: Path) -> None:
    broken = put_nsys(tmp_path / "bin/nsys", "1.0")
    broken.write_text("#!/bin/sh\nexit 3\n")
    good = put_nsys(tmp_path / "opt/nvidia/nsight-systems/2025.1.1/bin/nsys", "2025.1.1")
    skipped: list[str] = []
    environ = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    found = find(environ, root=tmp_path, skipped=skipped)
    assert found == Nsys(good, "2025.1.1", None, "/opt/nvidia/nsight-systems")
    assert skipped == [f"{broken} (PATH): --version fails (exit status 3)"]
    good.unlink()
    with pytest.raises(ZeropeakError, match=r"Passed over: .*exit status 3.*launch.sh setup.*NSYS=/path.*`torch`"):
        require(environ, root=tmp_path)


def test_a_path_with_a_space_is_no_candidate(tmp_path: Path) -> None:
    put_nsys(tmp_path / "a b/nsys", "2025.1.1")
    skipped: list[str] = []
    assert find({"PATH": str(tmp_path / "a b"), "HOME": str(tmp_path)}, root=tmp_path, skipped=skipped) is None
    assert "path with a space" in skipped[0]


@pytest.mark.parametrize(
    ("nsys", "importer"),
    [
        ("opt/2025/bin/nsys", "opt/2025/host-linux-x64/QdstrmImporter"),
        ("opt/2025/target-linux-x64/nsys", "opt/2025/host-linux-x64/QdstrmImporter"),
        ("ncu/host/target-linux-x64/nsys", "ncu/host/linux-desktop-glibc_2_11_3-x64/QdstrmImporter"),
    ],
)
def test_the_importer_is_found_beside_nsys(tmp_path: Path, nsys: str, importer: str) -> None:
    path = put_nsys(tmp_path / nsys, "2025.1.1", tmp_path / importer)
    found = find({"NSYS": str(path)}, root=tmp_path)
    assert found is not None
    assert found.importer == tmp_path / importer


def test_the_importer_of_debians_layout_is_found_along_the_links(tmp_path: Path) -> None:
    """/usr/bin/nsys -> ../lib/nsight-systems/bin/nsys -> ../target-linux-x64/nsys, that folder a link to elsewhere."""
    lib = tmp_path / "usr/lib"
    put_nsys(lib / "x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys", "2022.4.2.1")
    importer = lib / "nsight-systems/host-linux-x64/QdstrmImporter"
    importer.parent.mkdir(parents=True)
    importer.touch()
    (lib / "nsight-systems/target-linux-x64").symlink_to("../x86_64-linux-gnu/nsight-systems/target-linux-x64")
    (lib / "nsight-systems/bin").mkdir()
    (lib / "nsight-systems/bin/nsys").symlink_to("../target-linux-x64/nsys")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/nsys").symlink_to("../lib/nsight-systems/bin/nsys")
    found = find({"PATH": str(tmp_path / "usr/bin")}, root=tmp_path)
    assert found is not None
    assert found.importer == importer


def test_the_cache_follows_xdg_and_avoids_spaces(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/zeropeak")
    assert cache_folder({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/zeropeak")
    assert install_folder(Path("/x/zeropeak")) == Path("/x/zeropeak/nsys")
    own = install_folder(Path("/a b/zeropeak"), temporary=tmp_path)
    assert own == tmp_path / f"zeropeak-{os.getuid()}/nsys"


def test_a_folder_that_others_may_write_is_not_own(tmp_path: Path) -> None:
    folder = tmp_path / "private" / "nsys"
    folder.mkdir(parents=True)
    assert is_own(folder)
    folder.chmod(0o777)
    assert not is_own(folder)
    assert not is_own(tmp_path / "missing")


@pytest.mark.parametrize(
    ("nvtx", "nsys", "too_new"),
    [
        ("0.2.11", "2022.4.2.1", False),
        ("0.2.12", "2022.4.2.1", True),
        ("0.2.12", "2023.4.4.54", True),
        ("0.2.17", "2024.2.3.38", True),
        ("0.2.17", "2025.3.1.90", False),
        ("0.3", "2024.2", True),
    ],
)
def test_nvtx_from_0_2_12_records_nothing_before_nsys_2025(nvtx: str, nsys: str, too_new: bool) -> None:
    assert nvtx_too_new(nvtx, nsys) is too_new
    assert "nvtx==0.2.11" in nvtx_too_new_message(nvtx, nsys)


def test_cuda_is_traced_only_where_there_is_cuda() -> None:
    nsys = Nsys(Path("/n/nsys"), "2022.4.2.1", None, "PATH")
    without, with_cuda = profile_args(nsys, Path("/r/node-0"), False), profile_args(nsys, Path("/r/node-0"), True)
    assert without[:3] == ["/n/nsys", "profile", "--trace=nvtx"]
    assert without[-1] == "--output=/r/node-0"
    assert set(with_cuda) - set(without) == {"--trace=nvtx,cuda", "--cuda-memory-usage=true"}
