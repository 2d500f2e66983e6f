#!/bin/bash
# Brings what the instance's journal says of Bamboo into the run's folder of the bucket.
#
# A timer runs it every minute, and the agent's unit once more at its end. Each call takes what is
# new since the last one as a file of its own, since objects cannot be added to; a file that could
# not go up stays, and goes up with the next call. A log never holds up or ends anything.
set -euo pipefail
umask 077

: "${BAMBOO_BUCKET:?is written by the boot script: the bucket of the stack}"
: "${BAMBOO_LOG_RUN:?is written by the boot script: the run}"
: "${BAMBOO_INSTANCE:?is written by the boot script: the id of the instance}"
spool=${BAMBOO_SPOOL:-/var/lib/bamboo-logs}
most_parts=200 # of an hour without the bucket, say; older ones are dropped first

mkdir -p "$spool"
exec 9>"$spool/lock"
flock --wait 30 9

part="$spool/$(date -u +%Y%m%dT%H%M%S)-$$"
# An earlier call was cut short behind the reading: the journal does not say this again.
if [[ -s $spool/new ]]; then
    mv "$spool/new" "$part-a.log"
fi
journalctl --quiet --no-pager --output=short-iso --cursor-file="$spool/cursor" \
    --unit=bamboo-agent.service --unit=bamboo-deadman.service --unit=cloud-final.service \
    >"$spool/new"
if [[ -s $spool/new ]]; then
    mv "$spool/new" "$part-b.log"
fi

parts=("$spool"/*.log)
[[ -e ${parts[0]} ]] || exit 0
while ((${#parts[@]} > most_parts)); do
    rm -f "${parts[0]}"
    parts=("${parts[@]:1}")
done
for part in "${parts[@]}"; do
    timeout 60 aws s3 cp --only-show-errors "$part" \
        "s3://$BAMBOO_BUCKET/runs/$BAMBOO_LOG_RUN/logs/$BAMBOO_INSTANCE/${part##*/}"
    rm -f "$part"
done
