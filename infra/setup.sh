#!/bin/sh
# Makes `.venv` with Bamboo and everything that `make launch` and `make test` need.
#
# Rule: it says before it downloads, says nothing when there is nothing to do, and takes only the
# versions of constraints.txt. Surroundings that change what it does:
#   PYTHON                  the interpreter to build on (default: the first one >= 3.11 on the path)
#   BAMBOO_ACCELERATOR      `cpu` or `cuda`: the build of torch (default: by NVIDIA driver)
#   BAMBOO_TORCH_CPU_INDEX  where CPU builds of torch are (default: the official index)
# Exit status: 0 ready, 2 something on this machine is missing, else that of pip.
set -eu

cd "$(dirname "$0")/.."
venv=.venv
stamp=$venv/.bamboo-setup
cpu_index=${BAMBOO_TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}

# Sizes measured in November 2026 for Linux x86_64, except the CUDA build, which is an estimate.
other_mb=240
torch_cpu_mb=190
torch_cuda_gb=3

say() { printf '%s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 2
}

runs_and_is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        runs_and_is_new_enough "$PYTHON" ||
            fail "PYTHON=$PYTHON is not a working Python >= 3.11; give the path of one that is"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if runs_and_is_new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no Python >= 3.11 on the path; install one, or name it: make launch PYTHON=/path/to/it"
}

find_accelerator() {
    case "${BAMBOO_ACCELERATOR:-}" in
        cpu | cuda) printf '%s\n' "$BAMBOO_ACCELERATOR" ;;
        "")
            if [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; then
                printf 'cuda\n'
            else
                printf 'cpu\n'
            fi
            ;;
        *) fail "BAMBOO_ACCELERATOR=$BAMBOO_ACCELERATOR is neither cpu nor cuda" ;;
    esac
}

fingerprint() {
    "$python" - "$accelerator" pyproject.toml setup.py constraints.txt infra/setup.sh <<'PYTHON_END'
import hashlib, os, sys
digest = hashlib.sha256(f"{sys.version_info[:2]} {sys.argv[1]} {os.getcwd()}".encode())
for name in sys.argv[2:]:
    with open(name, "rb") as file:
        digest.update(file.read())
print(digest.hexdigest())
PYTHON_END
}

make_venv() {
    if same_python && pip --version >/dev/null 2>&1; then
        return
    fi
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || fail \
        "$python has no usable venv module; on Debian and Ubuntu: apt-get install python3-venv" \
        "(beside the default Python: python3.X-venv), then run this again"
    # What is there is of another Python, or broken.
    "$python" -m venv --clear "$venv"
}

same_python() {
    ours=$("$venv/bin/python" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null) || return 1
    [ "$ours" = "$("$python" -c 'import sys; print(sys.version_info[:2])')" ]
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
quietly() { pip -qq "$@"; }

torch_is_installed() {
    "$venv/bin/python" - "$torch" <<'PYTHON_END' 2>/dev/null
import sys
from importlib.metadata import version
sys.exit(version("torch").split("+")[0] != sys.argv[1].partition("==")[2])
PYTHON_END
}

index_answers() {
    "$venv/bin/python" - "$cpu_index/torch/" <<'PYTHON_END' >/dev/null 2>&1
import sys, urllib.request
urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="HEAD"), timeout=10).close()
PYTHON_END
}

# A plain `pip install torch` on Linux takes the CUDA build, gigabytes that a CPU never uses.
# `--no-deps`: torch's dependencies come with everything else, at the versions of constraints.txt.
install_torch() {
    if torch_is_installed; then
        say "setup: downloading up to about $other_mb MB, less what is here (torch is)"
    elif [ "$accelerator" = cuda ]; then
        say "setup: downloading up to about $torch_cuda_gb GB (torch for CUDA; NVIDIA driver found)"
    elif [ "$(uname -s)" != Linux ]; then
        say "setup: downloading up to about $((torch_cpu_mb + other_mb)) MB"
    elif quietly install --dry-run --no-deps --no-index "$torch" >/dev/null 2>&1; then
        say "setup: downloading up to about $other_mb MB (torch for CPU is in pip's local wheels)"
        quietly install --no-deps --no-index "$torch"
    elif index_answers; then
        say "setup: downloading up to about $((torch_cpu_mb + other_mb)) MB" \
            "(torch for CPU is $torch_cpu_mb of it)"
        quietly install --no-deps --index-url "$cpu_index" "$torch"
    else
        say "setup: $cpu_index does not answer; pip's own index may have" \
            "the CUDA build only: downloading up to about $torch_cuda_gb GB"
    fi
}

python=$(find_python)
accelerator=$(find_accelerator)
torch=$(grep '^torch==' constraints.txt)
wanted=$(fingerprint)
if [ -x "$venv/bin/bamboo" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
rm -f "$stamp"
make_venv
install_torch
extras=local,plot,data,hf,tensorboard,trackio,otlp,dev
quietly install --constraint constraints.txt --editable ".[$extras]"
printf '%s\n' "$wanted" >"$stamp"
say "setup: ready in $venv"
