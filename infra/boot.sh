#!/bin/bash
# First boot of a worker: fetch Bamboo from the stack's bucket, install, start the agent.
#
# It runs once, as root, as the instance's user data (terraform/template.tf puts the lines with
# names in front). Which run the instance belongs to it reads from its own tag `bamboo:run`.
# Whatever goes wrong ends in a power-off, which terminates the instance: a broken worker must not
# go on billing. What hangs is ended too: by a power-off ordered at once, until the dead-man switch
# is on.
set -euo pipefail
umask 022

: "${BAMBOO_BUCKET:?is set by the launch template: the bucket of the stack}"
home=${BAMBOO_HOME_DIR:-/opt/bamboo}
etc=${BAMBOO_ETC_DIR:-/etc/bamboo}
units=${BAMBOO_UNITS_DIR:-/etc/systemd/system}
metadata=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
torch_index=https://download.pytorch.org/whl

end() {
    local status=$?
    if ((status != 0)); then
        echo "bamboo boot: failed at '$BASH_COMMAND'; this instance powers off" >&2
        # Two minutes for the console output to be kept.
        shutdown -h +2
    fi
    exit "$status"
}
# At the exit, not at the error: a failure inside a function does not reach the latter.
trap end EXIT

from_metadata() {
    curl --fail --silent --show-error --max-time 5 --retry 5 --retry-connrefused \
        --header "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/$1"
}

fetch() {
    timeout 300 aws s3 cp --only-show-errors "s3://$BAMBOO_BUCKET/$1" "$2"
}

fetch_unit() { # name of a service with a timer, and its script
    fetch "boot/$2" "$home/$2"
    chmod 0755 "$home/$2"
    fetch "boot/$1.service" "$units/$1.service"
    fetch "boot/$1.timer" "$units/$1.timer"
}

# How the store is reached: from the secret into a file that systemd reads as root. A login of the
# run's own, in agent.env, goes before this one. A store that was made just now has yet to say it.
write_store_env() {
    local secret=
    for _ in {1..20}; do
        secret=$(timeout 60 aws secretsmanager get-secret-value --query SecretString \
            --secret-id "$BAMBOO_STORE_SECRET" --output text) && break
        sleep 15
    done
    printf '%s' "$secret" | python3 -c '
import json, pathlib, sys
secret, folder = json.load(sys.stdin), pathlib.Path(sys.argv[1])
authority = folder / "store-ca.pem"
authority.write_text(secret["ca_pem"])
authority.chmod(0o644)
print(f"BAMBOO_REDIS_CA=\"{authority}\"")
url = secret["url"]
print(f"BAMBOO_REDIS_URL=\"{url}?ssl_ca_certs={authority}\"")
' "$etc"
}

shutdown -h +45 "bamboo: the boot takes too long"

token=$(curl --fail --silent --show-error --max-time 5 --retry 5 --retry-connrefused \
    --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 300" "$metadata/latest/api/token")
run=$(from_metadata tags/instance/bamboo:run)
if [[ ! $run =~ ^[a-z0-9][a-z0-9-]{0,62}$ ]]; then
    echo "bamboo boot: its tag bamboo:run is '$run', which names no run" >&2
    exit 1
fi
instance=$(from_metadata instance-id)
AWS_DEFAULT_REGION=$(from_metadata placement/region)
export AWS_DEFAULT_REGION

getent passwd bamboo >/dev/null ||
    useradd --system --home-dir /var/lib/bamboo --create-home --shell /usr/sbin/nologin bamboo
install -d -m 0755 "$home"
install -d -m 0750 -o root -g bamboo "$etc"

# The dead-man switch comes first, then it is in charge of what hangs from here on.
cat >"$etc/instance.env" <<ENV
BAMBOO_BUCKET="$BAMBOO_BUCKET"
BAMBOO_LOG_RUN="$run"
BAMBOO_INSTANCE="$instance"
AWS_DEFAULT_REGION="$AWS_DEFAULT_REGION"
ENV
fetch_unit bamboo-deadman deadman.sh
fetch_unit bamboo-logs ship-logs.sh
systemctl daemon-reload
systemctl enable --now bamboo-deadman.timer bamboo-logs.timer
shutdown -c

if [[ -n ${BAMBOO_STORE_SECRET:-} ]]; then
    (umask 077 && write_store_env >"$etc/store.env")
fi
# The launcher wrote the run's settings: the run's login at the store, if it has one, among them.
(umask 077 && fetch "runs/$run/agent.env" "$etc/agent.env")
# A store that is not the stack's has its certificate beside them.
if grep -q '^BAMBOO_REDIS_CA=' "$etc/agent.env"; then
    fetch "runs/$run/store-ca.pem" "$etc/store-ca.pem"
    chmod 0644 "$etc/store-ca.pem"
fi

setting() { sed -n "s/^$1=\"\(.*\)\"\$/\1/p" "$etc/agent.env"; }

# The wheel of the run's launcher, to the byte: its digest is part of its name.
wheel=$(setting BAMBOO_WHEEL)
if [[ ! $wheel =~ ^wheels/([0-9a-f]{64})/(bamboo_train-[0-9A-Za-z.+]+-py3-none-any\.whl)$ ]]; then
    echo "bamboo boot: BAMBOO_WHEEL is '$wheel' in agent.env, which names no wheel" >&2
    exit 1
fi
digest=${BASH_REMATCH[1]} installed=$home/${BASH_REMATCH[2]}
fetch "$wheel" "$installed"
echo "$digest  $installed" | sha256sum --check --status
fetch boot/constraints.txt "$home/constraints.txt"
fetch boot/bamboo-agent.service "$units/bamboo-agent.service"

# And its build of torch, as another one may compute other bits. The index of PyPI has one build of
# a release, whose version has no suffix there; each other has an index of its own.
torch=$(setting BAMBOO_TORCH)
if [[ ! $torch =~ ^[0-9]+(\.[0-9]+)+(\+[a-z0-9]+)?$ ]]; then
    echo "bamboo boot: BAMBOO_TORCH is '$torch' in agent.env, which is no version" >&2
    exit 1
fi
sed -i "s/^torch==.*/torch==$torch/" "$home/constraints.txt"

found=
for python in python3 python3.13 python3.12 python3.11; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    found=$python
    break
done
[[ -n $found ]] || { echo "bamboo boot: the image has no Python >= 3.11" >&2; false; }
# Ubuntu has what makes environments in a package of its own.
if ! "$found" -c 'import ensurepip' 2>/dev/null; then
    timeout 120 apt-get update -qq
    timeout 300 apt-get install -qq -y python3-venv >/dev/null
fi
"$found" -m venv "$home/venv"
pip=("$home/venv/bin/python" -m pip --disable-pip-version-check -qq install)
if [[ $torch == *+* ]]; then
    "${pip[@]}" --no-deps --index-url "$torch_index/${torch#*+}" "torch==$torch"
fi
"${pip[@]}" --constraint "$home/constraints.txt" "$installed"

systemctl daemon-reload
systemctl start bamboo-agent.service
