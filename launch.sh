#!/usr/bin/env bash
# zeropeak from a checkout: finds or makes the Python environment, then runs the command line in it.
#
#   ./launch.sh nsys stage3      train a few steps under Nsight Systems, parse, write the report
#   ./launch.sh compare stage2 stage3 stage3-efficient    capture each (or reuse it), set them side by side
#   ./launch.sh setup            make the environment now, and fetch nsys if it is missing; nothing else
#   ./launch.sh test             everything that CI runs; `./launch.sh test -k name` runs pytest alone
#   ./launch.sh --help           all verbs and options (needs no set-up)
#
# Which Python:
#   1. the one on PATH, as it is, when it has torch and deepspeed; nothing is ever installed into it;
#   2. otherwise .venv beside this file, made with venv and pip from the pins in constraints.txt.
set -euo pipefail

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
venv=$here/.venv
stamp=$venv/zeropeak-stamp
sources=$here/profile:$here/parse:$here/reports

say() { printf '%s\n' "$*" >&2; }
fail() {
  say "zeropeak: $*"
  exit 1
}

# ---------------------------------------------------------------------------------------------- which Python

# describe PYTHON MODULE...: the version, the environment's folder and the modules it lacks, a line each.
# Fails when PYTHON does not run or is older than 3.11. find_spec looks without importing: torch alone takes seconds.
describe() {
  local python=$1
  shift
  "$python" -c '
import sys
from importlib.util import find_spec
if sys.version_info < (3, 11):
    sys.exit(1)
print("%d.%d.%d" % sys.version_info[:3], sys.prefix, *[name for name in sys.argv[1:] if find_spec(name) is None], sep="\n")
' "$@" 2>/dev/null
}

# The user's own environment, when it is one that trains: sets $python and $lacking.
use_environment_on_path() {
  local candidate lines
  for candidate in python3 python; do
    mapfile -t lines < <(describe "$candidate" torch deepspeed $(modules_for "$1"))
    [[ ${#lines[@]} -ge 2 ]] || continue
    [[ ! ${lines[1]} -ef $venv ]] || continue # our own .venv, activated: set-up keeps looking after it
    lacking=("${lines[@]:2}")
    [[ " ${lacking[*]} " != *" torch "* && " ${lacking[*]} " != *" deepspeed "* ]] || continue
    python=$(type -P "$candidate")
    return 0
  done
  return 1
}

modules_for() { # verb -> the importable names that it needs
  case $1 in
    parse | report) echo pandas pyarrow matplotlib msgspec rich ;;
    test) echo pandas pyarrow matplotlib msgspec rich nvtx transformers psutil peft pytest hypothesis ruff mypy ;;
    *) echo pandas pyarrow matplotlib msgspec rich nvtx transformers psutil ;;
  esac
}

# Any Python that can make .venv, or run --help: sets $python and $version.
find_python() {
  local candidate lines
  for candidate in python3 python python3.13 python3.12 python3.11; do
    mapfile -t lines < <(describe "$candidate")
    [[ ${#lines[@]} -ge 2 ]] || continue
    python=$(type -P "$candidate")
    version=${lines[0]}
    return 0
  done
  fail "needs Python 3.11 or newer and found none on PATH; on Debian or Ubuntu: sudo apt install python3 python3-venv"
}

# ---------------------------------------------------------------------------------------------- .venv

has_nvidia_gpu() {
  [[ -e /dev/nvidia0 || -e /proc/driver/nvidia/version ]] || nvidia-smi -L >/dev/null 2>&1
}

# What .venv was made from. The folder is part of it: a moved checkout is installed again.
fingerprint() {
  { printf '%s\n' "$here" "$version" && cat -- "$here/pyproject.toml" "$here/constraints.txt"; } | sha256sum | cut -d' ' -f1
}

is_set_up() { [[ -f $stamp && $(<"$stamp") == "$(fingerprint)" && -x $venv/bin/python ]]; }

# pip, quiet: what it says goes to the log. The user's own pip settings (indexes, proxies) hold; PIP_USER would break a venv.
pip_install() {
  PIP_USER=0 PYTHONPATH='' "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
    -c "$here/constraints.txt" "$@" >>"$venv/setup.log" 2>&1
}

give_up() {
  say "zeropeak: $1; the end of $venv/setup.log:"
  tail -n 12 -- "$venv/setup.log" | sed 's/^/  /' >&2
  exit 1
}

# torch first and alone. On a machine without a GPU PyPI's x86 build would bring several GB of CUDA that nothing uses;
# for aarch64 PyPI's own build is the CPU one.
install_torch() {
  local torch
  torch=$(sed -n 's/^torch==//p' "$here/constraints.txt")
  if has_nvidia_gpu || [[ $(uname -m) == aarch64 ]]; then
    pip_install "torch==$torch" || give_up "pip could not install torch $torch"
  else
    pip_install --no-deps "torch==$torch+cpu" ||
      pip_install --no-deps --index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" ||
      give_up "the CPU build of torch $torch is not on pip's indexes, and PyTorch's own index failed too"
  fi
}

make_environment() {
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module; on Debian or Ubuntu: sudo apt install python${version%.*}-venv"
  say "Setting up $venv once: torch, deepspeed and the rest at the versions of constraints.txt."
  if has_nvidia_gpu; then
    say "  About 3 GB to download and 7 GB on disk (torch with CUDA); some minutes."
  else
    say "  About 0.4 GB to download and 1.6 GB on disk (torch's CPU build: no NVIDIA GPU here); one to five minutes."
  fi
  trap 'say "Set-up interrupted; the next start does it again."; exit 130' INT TERM
  # A .venv without its stamp was interrupted, or made by another Python: start again. With one, only the pins changed.
  [[ -f $stamp && -x $venv/bin/python && $(describe "$venv/bin/python" | head -n 1) == "$version" ]] || rm -rf -- "$venv"
  rm -f -- "$stamp"
  if [[ ! -x $venv/bin/python ]]; then
    local said
    said=$("$python" -m venv -- "$venv" 2>&1) ||
      fail "python -m venv could not make $venv (${said##*$'\n'}): is the folder writable, the disk full?"
  fi
  : >"$venv/setup.log"
  say "  1/2 torch"
  install_torch
  say "  2/2 deepspeed, transformers, pandas, pyarrow, matplotlib, test tools"
  (cd -- "$here" && pip_install -e '.[profile,test]') || give_up "pip could not install the packages"
  fingerprint >"$stamp"
  trap - INT TERM
  say "  Done in ${SECONDS} s. To undo: rm -r $(printf %q "$venv")"
}

use_own_environment() {
  find_python
  if ! is_set_up; then
    # One set-up at a time per checkout; whoever waited finds it done. The lock ends with this process, however it ends.
    exec 9<"$here"
    if type -P flock >/dev/null && ! flock --nonblock 9; then
      say "Another set-up of $venv is running; waiting for it."
      flock 9
    fi
    is_set_up || make_environment 9<&-
    exec 9<&-
  fi
  python=$venv/bin/python
  unset PYTHONPATH # a user's PYTHONPATH may hold packages of another Python
}

use_environment() { # verb
  local lacking=()
  if use_environment_on_path "$1"; then
    [[ ${#lacking[@]} -eq 0 ]] ||
      fail "$python has torch and deepspeed and is used as it is, but lacks: ${lacking[*]}. Install them: $python -m pip install ${lacking[*]/#nvtx/nvtx==0.2.11}"
  else
    use_own_environment
  fi
  export PYTHONPATH=$sources${PYTHONPATH:+:$PYTHONPATH}
  unset PYTHONHOME
}

# ---------------------------------------------------------------------------------------------- verbs

run_checks() {
  say "== ruff"
  "$python" -m ruff check .
  "$python" -m ruff format --check .
  say "== mypy"
  "$python" -m mypy
  say "== docs/schema.md is what the code declares"
  "$python" -m zeropeak.parse.schema | diff -u docs/schema.md - ||
    fail "docs/schema.md is out of date; write it again: python -m zeropeak.parse.schema > docs/schema.md"
  say "== pytest"
}

export ZEROPEAK_PROGRAM=$0 # what help and messages call this
verb=${1:---help}
case " $* " in
  "  " | *" --help "* | *" -h "* | " --version ")
    find_python # help needs no package, so it sets nothing up
    PYTHONPATH=$sources exec "$python" -m zeropeak.cli "${@:---help}"
    ;;
esac
case $verb in
  nsys | torch | predict | compare | verify | parse | report | setup | test) use_environment "$verb" ;;
  *)
    find_python # a verb that does not exist sets nothing up either
    PYTHONPATH=$sources exec "$python" -m zeropeak.cli "$@"
    ;;
esac
if [[ $verb == test ]]; then
  shift
  cd -- "$here"
  [[ $# -gt 0 ]] || run_checks
  exec "$python" -m pytest "$@"
fi
exec "$python" -m zeropeak.cli "$@"
