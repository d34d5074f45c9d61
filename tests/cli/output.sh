# SPDX-License-Identifier: MIT
# stdin, stdout and stderr are the command's, byte for byte.
. "$HERE/lib.sh"

head -c 300000 /dev/urandom >data
for front in 0 1; do
    HOLDFAST_FRONT=$front "$HOLDFAST" run x -- cat <data >copy 2>err
    cmp data copy || fail "not the same bytes"
    HOLDFAST_FRONT=$front "$HOLDFAST" run x -- sh -c 'cat >&2' <data >out 2>copy
    cmp data copy || fail "not the same bytes on stderr"
    same "$(cat out err)" ""
done
# What holdfast does not read is left for the next.
printf 'one\ntwo\n' | { "$HOLDFAST" run x -- true; cat; } >out
same "$(cat out)" "$(printf 'one\ntwo')"
# A reader that goes away is the command's affair.
expect 0 sh -c '"$HOLDFAST" run x -- yes | head -n 1'
same "$(cat out)" y
free x || fail "x is still held"
