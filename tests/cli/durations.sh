# SPDX-License-Identifier: MIT
# Every spelling of a duration, through --grace, which takes all of them, and through the JSON of a lock's time left.
. "$HERE/lib.sh"

for good in 0 0ms 5 5s .5 0.5 1.5s 500ms 2s 5m 1h 0.0001ms 49d-is-not 1e3; do
    case $good in
    49d-is-not | 1e3) expected=64 ;;
    *) expected=0 ;;
    esac
    expect $expected "$HOLDFAST" run --grace "$good" x -- true
done
for bad in '' ' ' ' 1' '1 ' s ms . 1.s.s 1w 1S 1,5 +1 0x10 inf nan '1s 2s' ١; do
    expect 64 "$HOLDFAST" run --grace "$bad" x -- true
    said "is not a duration such as 500ms, 2s, 5m, 1h, 7d or plain seconds"
done
for bad in -1 -0.5s -.5 -0; do
    expect 64 "$HOLDFAST" run --grace="$bad" x -- true
    said "is negative"
done
for bad in 4294968 4294967296ms 1194h 99999999999999999999999999h 9999999999.9999999999999s; do
    expect 64 "$HOLDFAST" run --grace "$bad" x -- true
    said "is too long"
done
expect 0 "$HOLDFAST" run --grace 4294967295ms x -- true

# The units mean what they say: a lease of 2 minutes has between one and two minutes left.
for two_minutes in 120 120s 120000ms 2m 0.0333334h; do
    expect 0 "$HOLDFAST" run --no-renew -t "$two_minutes" x -- "$HOLDFAST" status x --json
    json 'it["remaining_ms"] is None or 60000 < it["remaining_ms"] <= 120001'
done
