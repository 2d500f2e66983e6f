#!/bin/sh
# Makes the virtual environment of the systems that we are measured against, beside our own, which
# it leaves alone: `benchmarks/peers/setup.sh`. It does nothing when it has been made already.
set -eu
cd "$(dirname "$0")/../.."
PEERS=.venv-peers
PACKAGES="torch==2.13.0 numpy torchft-nightly==2026.10.26"
if [ "$(cat "$PEERS/made" 2>/dev/null || true)" = "$PACKAGES" ]; then
    echo "peers: ready in $PEERS"
    exit 0
fi
"${PYTHON:-python3}" -m venv --clear "$PEERS"
# shellcheck disable=SC2086 # the packages are words
"$PEERS/bin/pip" install --quiet $PACKAGES
echo "$PACKAGES" >"$PEERS/made"
echo "peers: made in $PEERS"
