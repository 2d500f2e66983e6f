#!/bin/bash
# First boot of a worker instance: fetch Bamboo from the stack's bucket, install, start the agent.
#
# It runs once, as root, as the instance's user data (terraform/template.tf puts BAMBOO_BUCKET in
# front). Which run the instance belongs to it reads from its own tag `bamboo:run`. Whatever goes
# wrong ends in a power-off, which terminates the instance: a broken worker must not go on billing.
set -euo pipefail
umask 022

: "${BAMBOO_BUCKET:?is set by the launch template: the bucket of the stack}"
home=/opt/bamboo
metadata=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}

give_up() {
    echo "bamboo boot: line $1 failed; this instance powers off" >&2
    # Two minutes for the console output to be kept.
    shutdown -h +2
}
trap 'give_up "$LINENO"' ERR

from_metadata() {
    curl --fail --silent --show-error --max-time 5 --retry 5 --retry-connrefused \
        --header "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/$1"
}

fetch() {
    aws s3 cp --only-show-errors "s3://$BAMBOO_BUCKET/$1" "$2"
}

token=$(curl --fail --silent --show-error --max-time 5 --retry 5 --retry-connrefused \
    --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 300" "$metadata/latest/api/token")
run=$(from_metadata tags/instance/bamboo:run)
AWS_DEFAULT_REGION=$(from_metadata placement/region)
export AWS_DEFAULT_REGION

getent passwd bamboo >/dev/null ||
    useradd --system --home-dir /var/lib/bamboo --create-home --shell /usr/sbin/nologin bamboo
install -d -m 0755 "$home" "$home/wheels"

# The launcher wrote the run's settings: the store's address and password among them.
install -d -m 0750 -o root -g bamboo /etc/bamboo
(umask 077 && fetch "runs/$run/agent.env" /etc/bamboo/agent.env)

aws s3 sync --only-show-errors --delete --exclude '*' --include 'bamboo_train-*.whl' \
    "s3://$BAMBOO_BUCKET/wheels/" "$home/wheels/"
fetch boot/constraints.txt "$home/constraints.txt"
fetch boot/bamboo-agent.service /etc/systemd/system/bamboo-agent.service

wheel=$(find "$home/wheels" -name 'bamboo_train-*.whl' | sort --version-sort | tail -n 1)
[[ -n $wheel ]] || { echo "bamboo boot: no wheel in s3://$BAMBOO_BUCKET/wheels/" >&2; false; }

for python in python3 python3.13 python3.12 python3.11; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
done
"$python" -m venv "$home/venv"
"$home/venv/bin/python" -m pip --disable-pip-version-check -qq install \
    --constraint "$home/constraints.txt" "$wheel"

systemctl daemon-reload
systemctl enable --now bamboo-agent.service
