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
export LC_ALL=C
PATH=${BAMBOO_PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin}

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

# The role is as new as its run: for some seconds S3 may not know of its rights yet.
fetch() {
    local tries=12
    until timeout 300 aws s3 cp --only-show-errors "s3://$BAMBOO_BUCKET/$1" "$2"; do
        ((--tries > 0))
        sleep 5
    done
}

fetch_unit() { # name of a service with a timer, and its script
    fetch "boot/$2" "$home/$2"
    chmod 0755 "$home/$2"
    fetch "boot/$1.service" "$units/$1.service"
    fetch "boot/$1.timer" "$units/$1.timer"
}

# The settings of a run, name by name: one that does not stand in the list of the stack, or a line
# of another form, ends the boot. Nothing of the file itself goes on, as many a name of an
# environment runs code. Fills `settings`.
declare -A settings
read_settings() { # the file, the file of the names that may stand there
    local line name form='^([A-Za-z_][A-Za-z0-9_]*)="([A-Za-z0-9_.,:/@+=-]*)"$'
    while IFS= read -r line || [[ -n $line ]]; do
        if [[ ! $line =~ $form ]]; then
            echo "bamboo boot: agent.env has a line that is no NAME=\"value\"" >&2
            return 1
        fi
        name=${BASH_REMATCH[1]}
        if ! grep --quiet --line-regexp --fixed-strings -e "$name" "$2"; then
            echo "bamboo boot: agent.env has $name, which no agent is given" >&2
            return 1
        fi
        if [[ -n ${settings[$name]+there} ]]; then
            echo "bamboo boot: agent.env has $name twice" >&2
            return 1
        fi
        settings[$name]=${BASH_REMATCH[2]}
    done <"$1"
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
if [[ ! $instance =~ ^i-[0-9a-f]+$ || ! $AWS_DEFAULT_REGION =~ ^[a-z]{2,}(-[a-z]+)+-[0-9]+$ ]]; then
    echo "bamboo boot: it is '$instance' in '$AWS_DEFAULT_REGION', which names none" >&2
    exit 1
fi
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

# The launcher wrote the run's settings, where no instance may write. How the store is reached
# stands in a secret, of which they have the name: only the agent itself reads it.
fetch boot/agent_names.txt "$etc/agent_names.txt"
fetch "starts/$run/agent.env" "$etc/agent.env.fetched"
read_settings "$etc/agent.env.fetched" "$etc/agent_names.txt"
rm "$etc/agent.env.fetched"
if [[ ${settings[BAMBOO_RUN]:-} != "$run" ]]; then
    echo "bamboo boot: agent.env is of run '${settings[BAMBOO_RUN]:-}', not of $run" >&2
    exit 1
fi
(
    umask 077
    for name in "${!settings[@]}"; do
        printf '%s="%s"\n' "$name" "${settings[$name]}"
    done >"$etc/agent.env"
)
if [[ -n ${settings[BAMBOO_REDIS_CA]:-} ]]; then
    fetch "starts/$run/store-ca.pem" "$etc/store-ca.pem"
    chmod 0644 "$etc/store-ca.pem"
fi

# The wheel of the run's launcher, to the byte: its digest is part of its name.
wheel=${settings[BAMBOO_WHEEL]:-}
if [[ ! $wheel =~ ^wheels/([0-9a-f]{64})/(bamboo_train-[0-9A-Za-z.+]+-py3-none-any\.whl)$ ]]; then
    echo "bamboo boot: BAMBOO_WHEEL is '$wheel' in agent.env, which names no wheel" >&2
    exit 1
fi
digest=${BASH_REMATCH[1]} installed=$home/${BASH_REMATCH[2]}
fetch "$wheel" "$installed"
echo "$digest  $installed" | sha256sum --check --status
fetch boot/constraints.txt "$home/constraints.txt"
fetch boot/bamboo-agent.service "$units/bamboo-agent.service"

# And the build of torch for its device, as another one may compute other bits. The index of PyPI
# has one build of a release, whose version has no suffix there; each other has an index of its own.
torch=${settings[BAMBOO_TORCH]:-}
if [[ ! $torch =~ ^[0-9]+(\.[0-9]+)+(\+[a-z0-9]+)?$ ]]; then
    echo "bamboo boot: BAMBOO_TORCH is '$torch' in agent.env, which is no version" >&2
    exit 1
fi
sed -i "s/^torch==.*/torch==$torch/" "$home/constraints.txt"

# A run that brings wheels brings them for one Python.
wanted=${settings[BAMBOO_PYTHON]:-}
if [[ ! $wanted =~ ^(3\.[0-9]+)?$ ]]; then
    echo "bamboo boot: BAMBOO_PYTHON is '$wanted' in agent.env, which is no version" >&2
    exit 1
fi
pythons=(python3 python3.13 python3.12 python3.11)
[[ -z $wanted ]] || pythons=("python$wanted")
found=
for python in "${pythons[@]}"; do
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    found=$python
    break
done
[[ -n $found ]] || { echo "bamboo boot: the image has no Python ${wanted:->= 3.11}" >&2; false; }
# Ubuntu has what makes environments in a package of its own.
if ! "$found" -I -c 'import ensurepip' 2>/dev/null; then
    timeout 120 apt-get update -qq
    timeout 300 apt-get install -qq -y python3-venv >/dev/null
fi
"$found" -I -m venv "$home/venv"
pip=("$home/venv/bin/python" -I -m pip --isolated --disable-pip-version-check -qq install)
if [[ $torch == *+* ]]; then
    "${pip[@]}" --no-deps --index-url "$torch_index/${torch#*+}" "torch==$torch"
fi
extra=${settings[BAMBOO_EXTRA]:-}
if [[ ! $extra =~ ^[a-z]*$ ]]; then
    echo "bamboo boot: BAMBOO_EXTRA is '$extra' in agent.env, which names no extra" >&2
    exit 1
fi
"${pip[@]}" --constraint "$home/constraints.txt" "$installed${extra:+[$extra]}"

systemctl daemon-reload
systemctl start bamboo-agent.service
