#!/bin/sh
# Makes what the store of compose.yaml starts from, once: a certificate, a password, its settings.
#
# It runs in a container of its own, before the store does. What is there stays: the password lies
# in the volume and in nobody's environment. Whoever runs `bamboo` reads the store's URL from `url`.
set -eu
umask 077

to=${STORE_DIR:-/store}
host=${STORE_HOST:-store}
port=${STORE_PORT:-6379}
[ ! -e "$to/url" ] || exit 0

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj "/CN=$host" -addext "subjectAltName=DNS:$host,DNS:localhost,IP:127.0.0.1" \
    -addext "keyUsage=critical,digitalSignature,keyCertSign" \
    -keyout "$to/key.pem" -out "$to/certificate.pem" 2>/dev/null
password=$(openssl rand -hex 32)
digest=$(printf '%s' "$password" | sha256sum | cut -d ' ' -f 1)

# What bamboo/coord/acl.py gives the user of a run, here for the runs of this laptop: no server-side
# function, and nothing that is not of a run.
may='+ping +select +evalsha +script|load +del +exists +expire +time'
may="$may +hget +hgetall +hmget +hset +xadd +xread"
cat >"$to/users.acl" <<ACL
user default off
user bamboo on #$digest resetkeys resetchannels -@all ~bamboo:* $may
ACL
cat >"$to/store.conf" <<CONF
port 0
tls-port $port
tls-cert-file $to/certificate.pem
tls-key-file $to/key.pem
tls-ca-cert-file $to/certificate.pem
tls-auth-clients no
aclfile $to/users.acl
dir $to
appendonly yes
appendfsync always
CONF
# Last of all: with it everything is there.
printf 'rediss://bamboo:%s@%s:%s/0?ssl_ca_certs=%s\n' \
    "$password" "$host" "$port" "$to/certificate.pem" >"$to/url.new"
mv "$to/url.new" "$to/url"
