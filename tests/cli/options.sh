# SPDX-License-Identifier: MIT
# The options of `run`, each way of writing them, and where they stop.
. "$HERE/lib.sh"

# Options stop at NAME; "--" may stand there, or not; what follows is the command's own.
expect 0 "$HOLDFAST" run x echo -n --help -- -w
same "$(cat out)" "--help -- -w"
expect 0 "$HOLDFAST" run x -- echo a -- b
same "$(cat out)" "a -- b"
expect 0 "$HOLDFAST" run -n -- -strange-name -- echo "two  words" '*'
same "$(cat out)" "two  words *"
expect 0 "$HOLDFAST" -u "file://$TMP/locks" run -nt5s -w2s -E 3 \
    --no-renew --max-hold=1m --on-lost=kill --grace=1s --note=n x true
expect 0 "$HOLDFAST" --url="file://$TMP/locks" run --nonblock --ttl 5s --wait 2s --conflict-exit-code 3 x true

# -u wins over the environment.
mkdir -m 700 other
expect 0 "$HOLDFAST" -u "file://$TMP/other" run x -- sh -c 'echo $HOLDFAST_URL'
same "$(cat out)" "file://$TMP/other"
HOLDFAST_URL=file://$TMP/other expect 0 "$HOLDFAST" run x -- sh -c 'echo $HOLDFAST_URL'
same "$(cat out)" "file://$TMP/other"

# -w 0 is -n; the last of both counts for nothing more than its own.
"$HOLDFAST" run x -- sh -c 'touch started; until [ -e done ]; do sleep 0.02; done' &
until_true '[ -e started ]'
expect 75 "$HOLDFAST" run -w 0 x -- true
expect 75 "$HOLDFAST" run -n x -- true
expect 75 "$HOLDFAST" run -w 20ms x -- true
expect 9 "$HOLDFAST" run -w 20ms -E 9 x -- true
# Another name, and the same name in another store, are other locks.
expect 0 "$HOLDFAST" run -n y -- true
expect 0 "$HOLDFAST" -u "file://$TMP/other" run -n x -- true
touch done
wait

# --note is shown.
expect 0 "$HOLDFAST" run --note 'release 12, 锁' x -- "$HOLDFAST" status x --json
json 'it["note"] == "release 12, 锁"'
