#!/bin/sh
# Sees to it that redis-server is on the path, for `make redis-e2e`: installs Debian's where it may.
# It starts no server: the tests start their own, on loopback. Exit status: 0 it is there, 2 it is
# not and cannot be installed here, else that of apt-get.
set -eu

command -v redis-server >/dev/null && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "redis-e2e: redis-server is not on the path; install it with TLS (Debian: as root," \
        "apt-get install redis-server), then run make redis-e2e again" >&2
    exit 2
fi
echo "redis-e2e: installing redis-server (a few MB)"
apt-get update -qq
# The package would start a server of its own; the tests need the program alone.
RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server
command -v redis-server >/dev/null
