# SPDX-License-Identifier: MIT
# `holdfast hold`: a lock for the rest of a script, as holdfast(1) shows it.
. "$HERE/lib.sh"
mkdir bin
ln -s "$HOLDFAST" bin/holdfast
PATH=$TMP/bin:$PATH

# The example for sh: held, with its token, until the descriptor is closed.
manual mkfifo >example
sed 's/^kill -0.*/&\n. .\/middle/' example >script
echo 'holdfast status nightly --json >during; echo "$held" >line' >middle
TMPDIR=$TMP expect 0 sh script
same "$(cat err)" ""
mv out printed && cp during out
json 'it["held"]'
token=$(python3 -c 'import json; print(json.load(open("during"))["token"])')
same "$(cat printed)" "working, token $token"
same "$(cat line)" "held nightly token $token"
free nightly || fail "nightly is still held"
# Somebody else has it: not acquired, and the script ends before it works.
TMPDIR=$TMP expect 75 holdfast run nightly -- sh script
same "$(cat out)" "" "two at once"

# The example for bash.
manual coproc >example.bash
sed 's/^kill -0.*/&\n. .\/middle/' example.bash >script.bash
rm during line
expect 0 bash script.bash
same "$(cat err)" ""
grep -q '"held": true' during || fail "not held by bash's coproc"
same "working, $(sed 's/held nightly //' line)" "$(cat out)"
free nightly || fail "nightly is still held"
expect 75 holdfast run nightly -- bash script.bash

# What ends it besides. Each time a fifo is held open by descriptor 8, and the output is read.
start() # ARGUMENT ...: $pid holds x
{
    rm -f in line
    mkfifo in
    # shellcheck disable=SC2094
    holdfast hold "$@" <in >line 2>err &
    pid=$!
    exec 8>in
}
ends() # CODE
{
    code=0
    wait $pid || code=$?
    same "$code" "$1" "the exit code of hold"
}
start 'two words'
until_true '[ -s line ]'
held 'two words' || fail "not held"
case $(cat line) in 'held two words token '[1-9]*) ;; *) fail "it printed: $(cat line)" ;; esac
echo nonsense >&8 # is thrown away
held 'two words' || fail "not held after a line of input"
kill $pid
ends 0
free 'two words' || fail "still held after SIGTERM"
start x
until_true '[ -s line ]'
kill -HUP $pid
ends 129
free x || fail "still held after SIGHUP"
# The death of the script, however sudden.
cat >killed <<'END'
rm -f in line
mkfifo in
holdfast hold x <in >line 2>/dev/null &
exec 8>in
until [ -s line ]; do sleep 0.02; done
kill -KILL $$
END
expect 137 sh killed
until_true 'free x'
# A loss is said, and the script reads the end of the output.
start x
until_true '[ -s line ]'
holdfast break x
ends 76
said "the lock 'x' was lost"
start --max-hold 300ms x
ends 76
said "the lock 'x' was lost"
start x
until_true '[ -s line ]'
# A wait ends with the script that waits.
rm -f in2
mkfifo in2
holdfast hold x <in2 >line2 2>err2 &
second=$!
exec 7>in2
until_true 'holdfast status x --json | grep -q "\"waiters\": 1"'
exec 7>&-
code=0
wait $second || code=$?
same $code 143
same "$(cat line2 err2)" ""
held x || fail "the first lost it"
# Not acquired, and quiet about it where that is wanted.
expect 75 holdfast hold -n x <in
said "the lock 'x' was not acquired"
expect 0 holdfast hold -n -E 0 x <in
same "$(cat out err)" ""
expect 70 sh -c 'holdfast hold y <in >/dev/full'
said "cannot write"
free y || fail "y is still held"
exec 8>&-
ends 0
free x || fail "still held"

# What would end at once is refused.
expect 64 holdfast hold x </dev/null
said "standard input must be a pipe"
expect 64 holdfast hold x <line
said "standard input must be a pipe"
expect 64 sh -c 'holdfast hold x <&-'
said "standard input must be a pipe"
expect 64 holdfast hold </dev/null
said "name of a lock is missing"
expect 64 holdfast hold a b </dev/null
said "one name at a time"
expect 64 holdfast hold -t 50ms x </dev/null
said "-t: '50ms' is too short"
# There is no `release`, and it says what there is.
expect 64 holdfast release x
said "holdfast hold"
