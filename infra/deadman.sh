#!/bin/bash
# The dead-man switch of a worker instance: powers it off, which ends it, when it bills for nothing.
#
# A timer runs it every minute, as root, whatever became of the agent. It trusts nobody to be alive:
#   expired   the tag `bamboo:expires-at` has passed, or had when the tag could be read last
#   over      the agent has ended, or never began, and nobody has ended the instance since
#   silent    the store has not answered the agent for too long, or the agent hangs
# An agent that left on a preemption notice is waited for: the cloud takes the instance within
# minutes, and charges nothing for an instance of less than an hour that it takes itself.
set -euo pipefail

over_s=${BAMBOO_OVER_S:-900}      # an agent that has ended, until its instance goes
begin_s=${BAMBOO_BEGIN_S:-2700}   # a boot, until there is an agent
silent_s=${BAMBOO_SILENT_S:-4500} # a store that does not answer; the agent itself gives up sooner
heard=${BAMBOO_HEARD_FILE:-/run/bamboo/heard}
kept=${BAMBOO_DEADMAN_DIR:-/run/bamboo-deadman}
proc=${BAMBOO_PROC:-/proc}
metadata=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}

# The last lines of the log get a moment at the first look; an order given anew at each look would
# be put off each time. Who is still here then goes at once, and then without asking systemd.
power_off() {
    local looks=0
    mkdir -p "$kept"
    [[ ! -e $kept/ordered ]] || read -r looks <"$kept/ordered"
    printf '%s\n' "$((looks + 1))" >"$kept/ordered"
    echo "bamboo dead-man switch: $1; this instance powers off"
    case "$looks" in
        0)
            systemctl start --no-block bamboo-logs.service || true
            shutdown -h +1 "bamboo: $1" || systemctl poweroff
            ;;
        1 | 2) systemctl poweroff || true ;;
        *) systemctl poweroff --force --force ;;
    esac
    exit 0
}

ask() { curl --fail --silent --max-time 5 "$@"; }

# The tag as it is now, so that a run can be prolonged; else as it was read last.
expires_at() {
    local token value
    if token=$(ask --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 60" \
        "$metadata/latest/api/token") &&
        value=$(ask --header "X-aws-ec2-metadata-token: $token" \
            "$metadata/latest/meta-data/tags/instance/bamboo:expires-at") &&
        [[ $value =~ ^[0-9]{1,12}$ ]]; then
        mkdir -p "$kept"
        printf '%s\n' "$value" >"$kept/expires-at"
    fi
    cat "$kept/expires-at" 2>/dev/null || true
}

now=$(date +%s)
expires=$(expires_at)
if [[ -n $expires ]] && ((now >= expires)); then
    power_off "it expired at $expires"
fi

read -r up _ <"$proc/uptime"
up=${up%.*}
state=$(systemctl show --property=ActiveState --value bamboo-agent.service || true)
case "$state" in
    active | deactivating | reloading)
        # Before its first beat there is no file: the agent's own start counts then.
        last=$(systemctl show --property=ActiveEnterTimestampMonotonic --value bamboo-agent.service)
        quiet=$((up - ${last:-0} / 1000000))
        if [[ -e $heard ]]; then
            quiet=$((now - $(date -r "$heard" +%s)))
        fi
        if ((quiet >= silent_s)); then
            power_off "the store has not answered for $quiet s"
        fi
        ;;
    *)
        ended=$(systemctl show --property=InactiveEnterTimestampMonotonic --value \
            bamboo-agent.service || true)
        ended=$((${ended:-0} / 1000000))
        if ((ended > 0 && up - ended >= over_s)); then
            power_off "its agent ended $((up - ended)) s ago"
        elif ((ended == 0 && up >= begin_s)); then
            power_off "it has no agent $up s after its start"
        fi
        ;;
esac
