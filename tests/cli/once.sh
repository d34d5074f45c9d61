# SPDX-License-Identifier: MIT
# run --once-per, --even-if-failed and --hold-at-least; ls --done; forget.
. "$HERE/lib.sh"

# What was done is not done again, and nothing is said about it.
expect 0 "$HOLDFAST" run --once-per 1h job -- sh -c 'echo ran; exit 0'
same "$(cat out err)" ran
for options in '' -n '-w 1s' -q; do
    # shellcheck disable=SC2086 # options are words
    expect 0 "$HOLDFAST" run $options --once-per 1h job -- echo ran
    same "$(cat out err)" "" "with '$options'"
done
expect 3 "$HOLDFAST" run -E 3 --once-per 1h job -- echo ran
same "$(cat out err)" ""
expect 0 "$HOLDFAST" run --verbose --once-per 1h job -- echo ran
said "'job' was done by "
said 'which counts for another 59 min'
# Who does not ask for it is not concerned, nor is another lock.
expect 0 "$HOLDFAST" run -n job -- echo ran
same "$(cat out)" ran
expect 0 "$HOLDFAST" run --once-per 1h another -- echo ran
same "$(cat out)" ran

# A terminal is told who, and when.
"$JOBPTY" exited:0 -- "$HOLDFAST" run --once-per 1h job -- echo ran >out
grep -q "'job' was done by .* ago" out || fail "a terminal is not told"

# The list, the log, and taking it back.
expect 0 "$HOLDFAST" ls --done
printed 'DONE BY'
[ "$(wc -l <out)" -eq 3 ] || fail "not two of them"
expect 0 "$HOLDFAST" ls --done --names anot
same "$(cat out)" another
expect 0 "$HOLDFAST" ls --done --json job
python3 -c 'import json, sys
(it,) = json.load(open(sys.argv[1]))
assert it["name"] == "job" and it["pid"] > 0 and it["ago_ms"] >= 0 and 0 < it["remaining_ms"] <= 3600000, it
assert "waiters" not in it and it["note"].endswith(": sh"), it' out || fail "the JSON"
expect 0 "$HOLDFAST" run --log "$TMP/events" --once-per 1h job -- echo ran
grep -q '"event": "done", "name": "job"' events || fail "not in the log"
expect 0 "$HOLDFAST" forget job
same "$(cat out err)" ""
expect 0 "$HOLDFAST" forget job
expect 0 "$HOLDFAST" ls --done --names
same "$(cat out)" another
expect 0 "$HOLDFAST" run --once-per 1h job -- echo ran
same "$(cat out)" ran
expect 0 "$HOLDFAST" forget job

# What failed, was ended by a signal, or lost its lock is not done.
expect 7 "$HOLDFAST" run --once-per 1h job -- sh -c 'exit 7'
expect 143 "$HOLDFAST" run --once-per 1h job -- sh -c 'kill -TERM $$'
expect 127 "$HOLDFAST" run --once-per 1h job -- ./not-there
expect 76 "$HOLDFAST" run --once-per 1h job -- sh -c '"$HOLDFAST" break job; sleep 100'
expect 76 "$HOLDFAST" run --max-hold 50ms --grace 50ms --once-per 1h job -- sleep 100
expect 0 "$HOLDFAST" ls --done --names job
same "$(cat out)" ""
# Nor is, even so, what could not be started.
expect 127 "$HOLDFAST" run --once-per 1h --even-if-failed job -- ./not-there
touch not-executable
expect 126 "$HOLDFAST" run --once-per 1h --even-if-failed job -- ./not-executable
expect 0 "$HOLDFAST" ls --done --names job
same "$(cat out)" ""
expect 7 "$HOLDFAST" run --once-per 1h --even-if-failed job -- sh -c 'exit 7'
expect 0 "$HOLDFAST" run --once-per 1h job -- echo ran
same "$(cat out err)" ""
expect 0 "$HOLDFAST" forget job

# Who comes while another one is at it waits, and does it if that one fails; with -n it does not wait.
"$HOLDFAST" run --once-per 1h job -- sh -c 'touch ready; until [ -e go ]; do sleep 0.02; done; exit 7' &
first=$!
until_true '[ -e ready ]'
expect 0 "$HOLDFAST" run -n --once-per 1h job -- echo ran
same "$(cat out err)" ""
"$HOLDFAST" run --once-per 1h job -- sh -c 'echo ran >second' &
second=$!
until_true '"$HOLDFAST" status --json job | grep -q "\"waiters\": 1"'
touch go
code=0
wait $first || code=$?
same $code 7
wait $second
same "$(cat second)" ran
expect 0 "$HOLDFAST" run --once-per 1h job -- echo ran
same "$(cat out err)" ""
expect 0 "$HOLDFAST" forget job

# Its time is over.
expect 0 "$HOLDFAST" run --once-per 300ms job -- echo ran
until_true '[ "$("$HOLDFAST" run --once-per 1h job -- echo ran)" = ran ]'
expect 0 "$HOLDFAST" forget job

# Five hosts, night after night, which are short because it is forgotten; `make test-all` has fifty of them.
. "$HERE/nights.sh"
nights 10

# Holding on: the command is over, the lock is held, and a signal ends it.
"$HOLDFAST" run --hold-at-least 1h keep -- touch over &
holder=$!
until_true '[ -e over ]'
expect 75 "$HOLDFAST" run -n keep -- echo ran
expect 0 "$HOLDFAST" status keep
kill -TERM $holder
wait $holder || fail "the command had ended well"
expect 1 "$HOLDFAST" status -q keep
# Not longer than it takes, if that is more; the command's exit code counts.
expect 5 "$HOLDFAST" run --hold-at-least 10ms keep -- sh -c 'sleep 0.1; exit 5'
expect 5 "$HOLDFAST" run --hold-at-least 200ms keep -- sh -c 'exit 5'
same "$(cat out err)" ""

# Also on a terminal, where the lock is kept by another process than the one that the terminal knows.
cat >kept <<'END'
keeper=$JOB
[ "$HOLDFAST_FRONT" -eq 0 ] || keeper=$(echo $(cat /proc/$JOB/task/$JOB/children))
until [ -z "$(cat /proc/$keeper/task/$keeper/children)" ] && [ "$(ps -o pgid= -p $keeper)" -eq $JOB ]; do
    sleep 0.02
done
END
for front in 0 1; do
    rm over
    expect 0 env HOLDFAST_FRONT=$front "$JOBPTY" file:over 'sh:sh kept' key:c exited:0 -- \
        "$HOLDFAST" run --hold-at-least 1h keep -- touch over
done
# If that one is killed, the command is ended, which is not to be done whatever it says, and nothing is kept.
HOLDFAST_FRONT=1 "$HOLDFAST" run --once-per 1h --hold-at-least 1h keep -- \
    sh -c 'trap "exit 0" TERM; touch begun; while :; do sleep 0.02; done' &
holder=$!
until_true '[ -e begun ]'
kill -KILL $holder
wait $holder || :
until_true '! "$HOLDFAST" status -q keep'
expect 0 "$HOLDFAST" ls --done --names keep
same "$(cat out)" ""
# Under an outer run.
"$HOLDFAST" run keep -- "$HOLDFAST" run --hold-at-least 1h keep -- sh -c 'echo $PPID >inner' &
outer=$!
until_true '[ -s inner ]'
expect 75 "$HOLDFAST" run -w 300ms keep -- echo ran
kill -TERM "$(cat inner)"
wait $outer || fail "the command had ended well"

# What makes no sense.
expect 64 "$HOLDFAST" run --even-if-failed job -- true
said 'without --once-per'
expect 64 "$HOLDFAST" run --hold-at-least 2s --max-hold 1s job -- true
said 'longer than --max-hold'
expect 64 "$HOLDFAST" run --hold-at-least 1s --no-renew -t 1s job -- true
said '--no-renew'
expect 64 "$HOLDFAST" run --once-per 0 job -- true
expect 64 "$HOLDFAST" run --once-per 60d job -- true
expect 64 "$HOLDFAST" run job -- "$HOLDFAST" run --once-per 1h job -- true
said 'an outer run holds'
expect 64 "$HOLDFAST" forget
expect 64 "$HOLDFAST" forget a b
