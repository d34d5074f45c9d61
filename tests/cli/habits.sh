# SPDX-License-Identifier: MIT
# What the fingers know from flock and other commands.
. "$HERE/lib.sh"
mkdir bin
ln -s "$HOLDFAST" bin/holdfast
PATH=$TMP/bin:$PATH

# -c: a text for the shell, before the name or behind it.
expect 7 holdfast run x -c 'echo "$HOLDFAST_NAME" | tr a-z A-Z; exit 7'
same "$(cat out)" X
expect 0 holdfast run -c 'echo one; echo two' x
same "$(tr '\n' ' ' <out)" "one two "
expect 0 holdfast run -n --command='echo $0' x --
same "$(cat out)" sh
expect 0 holdfast run x --command 'echo long'
same "$(cat out)" long
expect 64 holdfast run x -c
said "-c takes one argument"
expect 64 holdfast run x -c 'touch ran' more
said "-c takes one argument"
expect 64 holdfast run -c 'touch ran' x touch ran
said "besides that of -c"
expect 64 holdfast run -c 'touch ran' x -c 'touch ran'
[ ! -e ran ] || fail "it ran"
# Behind "--" it is a command like any other.
expect 127 holdfast run x -- -c true

# -V, help.
expect 0 holdfast -V
cp out version
expect 0 holdfast --version
cmp out version || fail "-V is not --version"
expect 0 holdfast --help
cp out help
expect 0 holdfast help
cmp out help || fail "help is not --help"
for command in run hold ls status break forget guard engines doctor bench verify; do
    expect 0 holdfast $command --help
    cp out help
    expect 0 holdfast help $command
    cmp out help || fail "help $command is not $command --help"
done
expect 64 holdfast help fly
said "unknown command 'fly'"
expect 64 holdfast help run ls
said "one command at a time"

# -u behind the command, with each that has a store; the last one counts.
mkdir -m 700 other
for command in 'run -n x true' 'ls' 'status y' 'break x'; do
    code=0
    [ "$command" != 'status y' ] || code=1
    expect $code holdfast ${command%% *} -u "file://$TMP/other" ${command#* }
    expect 64 holdfast ${command%% *} -u nosuch: ${command#* }
    said nosuch
done
expect 0 holdfast -u nosuch: run --url="file://$TMP/other" x -- sh -c 'echo "$HOLDFAST_URL"'
same "$(cat out)" "file://$TMP/other"
expect 0 holdfast bench -u mem: --seconds 0.1
expect 1 holdfast status y -u "file://$TMP/other"

# --timeout is --wait, and messages name what was typed.
holdfast run x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
until_true '[ -e ready ]'
expect 75 holdfast run --timeout 20ms x -- true
touch done
wait
for typed in '--timeout soon' '--wait soon' '-w soon' '--ttl 50ms' '-t 50ms' '--max-hold 0' '--grace x' '-E x'; do
    expect 64 holdfast run $typed x -- true
    said "holdfast: ${typed% *}: '${typed#* }' is"
done
expect 64 holdfast run --ttl 50ms x -- true
said "--ttl: '50ms' is too short: the least is 100ms"

# A script that runs itself under the lock: the first line of holdfast(1), once, with its arguments.
{ echo '#!/bin/sh' && manual 'exec holdfast run' && echo 'echo "$HOLDFAST_NAME: $*" "$@"; exit 5'; } >script
chmod +x script
expect 5 ./script 'two  words' 3
same "$(cat out)" "nightly: two  words 3 two  words 3"
free nightly || fail "nightly is still held"
# Inside of another lock too.
expect 5 holdfast run another -- ./script
same "$(cat out)" "nightly: "

# The first examples of holdfast(1).
for name in report deploy; do
    printf '#!/bin/sh\necho %s\n' $name >$name.sh
    chmod +x $name.sh
done
manual 'run -n nightly-report' >example
expect 0 sh example
same "$(cat out err)" report
manual 'max-hold 1h' >example
expect 0 sh example
same "$(cat out err)" deploy
