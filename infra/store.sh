#!/bin/bash
# First boot of the store's instance: a certificate and a password made here, then Redis or Valkey
# from the distribution, by TLS only.
#
# It runs once, as root, as the instance's user data (terraform/store.tf puts the lines with names
# in front). The password goes from here into the secret and nowhere else: it stands in no argument
# and in no log, and the server's own file holds its SHA-256. A secret that has a password already
# keeps it, so that a replaced store is the same to whoever knows it; the certificate is new.
set -euo pipefail
umask 077

: "${BAMBOO_ADMIN_SECRET:?is set by the stack: the secret that the launcher reads}"
port=${BAMBOO_STORE_PORT:-6379}
etc=${BAMBOO_STORE_ETC:-/etc/bamboo-store}
data=${BAMBOO_STORE_DATA:-/var/lib/bamboo-store}
units=${BAMBOO_STORE_UNITS:-/etc/systemd/system}
metadata=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}

trap '(($? == 0)) || echo "bamboo store: failed at $BASH_COMMAND; there is no store" >&2' EXIT

from_metadata() {
    curl --fail --silent --show-error --max-time 5 --retry 5 --retry-connrefused \
        --header "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/$1"
}

# The packages come over the network, which a first boot may be ahead of.
install_server() {
    local package
    for _ in 1 2 3 4 5; do
        for package in valkey redis6; do
            dnf install -q -y "$package" openssl && return
        done
        sleep 10
    done
    return 1
}

find_server() {
    local name
    for name in valkey-server redis6-server redis-server; do
        command -v "$name" && return
    done
    return 1
}

# The password that a secret holds already, or a new one.
password_of() {
    local found
    found=$(aws secretsmanager get-secret-value --secret-id "$1" --query SecretString \
        --output text 2>/dev/null | sed -n 's/.*"password": *"\([0-9a-f]\{64\}\)".*/\1/p' || true)
    if [[ -n $found ]]; then
        printf '%s' "$found"
    else
        openssl rand -hex 32 | tr -d '\n'
    fi
}

tell() { # secret, user, password
    {
        printf '{"url": "rediss://%s:%s@%s:%s/0", ' "$2" "$3" "$private" "$port"
        printf '"public_host": "%s", "password": "%s", "ca_pem": "' "$public" "$3"
        awk '{ printf "%s\\n", $0 }' "$etc/certificate.pem"
        printf '"}'
    } |
        aws secretsmanager put-secret-value --secret-id "$1" --secret-string file:///dev/stdin \
            --output text --query VersionId >/dev/null
}

token=$(curl --fail --silent --show-error --max-time 5 --retry 5 --retry-connrefused \
    --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 300" "$metadata/latest/api/token")
AWS_DEFAULT_REGION=$(from_metadata placement/region)
export AWS_DEFAULT_REGION
private=$(from_metadata local-ipv4)
public=$(from_metadata public-ipv4 2>/dev/null || true)

install_server
server=$(find_server)
getent passwd bamboo-store >/dev/null ||
    useradd --system --home-dir "$data" --no-create-home --shell /usr/sbin/nologin bamboo-store
install -d -m 0750 -o root -g bamboo-store "$etc"
install -d -m 0700 -o bamboo-store -g bamboo-store "$data"

names="IP:$private${public:+,IP:$public}"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj "/CN=bamboo-store" -addext "subjectAltName=$names" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
    -addext "keyUsage=critical,digitalSignature,keyCertSign" \
    -keyout "$etc/key.pem" -out "$etc/certificate.pem" 2>/dev/null

admin=$(password_of "$BAMBOO_ADMIN_SECRET")
digest=$(printf '%s' "$admin" | sha256sum | cut -d ' ' -f 1)

# `admin` makes a user for each run, and is the launcher's; no instance of a run has another login.
cat >"$data/users.acl" <<ACL
user default off
user admin on #$digest ~* &* +@all
ACL

# A decision is acted upon once the store has taken it: it must not forget one, hence `always`.
cat >"$etc/store.conf" <<CONF
port 0
tls-port $port
bind 0.0.0.0
tls-cert-file $etc/certificate.pem
tls-key-file $etc/key.pem
tls-ca-cert-file $etc/certificate.pem
tls-auth-clients no
tls-protocols "TLSv1.2 TLSv1.3"
aclfile $data/users.acl
dir $data
appendonly yes
appendfsync always
maxmemory-policy noeviction
daemonize no
loglevel notice
CONF

cat >"$units/bamboo-store.service" <<UNIT
[Unit]
Description=Bamboo store
Wants=network-online.target
After=network-online.target

[Service]
User=bamboo-store
Group=bamboo-store
ExecStart=$server $etc/store.conf
Restart=always
RestartSec=2
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths=$data
ProtectHome=yes
PrivateTmp=yes
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
UNIT

chown root:bamboo-store "$etc/key.pem" "$etc/certificate.pem" "$etc/store.conf"
chmod 0640 "$etc/key.pem" "$etc/store.conf"
chmod 0644 "$etc/certificate.pem"
chown bamboo-store:bamboo-store "$data/users.acl"

systemctl daemon-reload
systemctl enable --now bamboo-store.service
# Said last: who reads it finds a store.
tell "$BAMBOO_ADMIN_SECRET" admin "$admin"
