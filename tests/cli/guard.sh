# SPDX-License-Identifier: MIT
# `holdfast guard`: a token that is too old is refused with a code of its own.
. "$HERE/lib.sh"
store=sqlite://$TMP/locks.db

expect 0 "$HOLDFAST" -u "$store" guard stock 34
expect 0 "$HOLDFAST" -u "$store" guard stock 34
expect 76 "$HOLDFAST" guard -u "$store" stock 33
said "token than 33"
expect 0 "$HOLDFAST" guard stock 9223372036854775807 -u "$store"
expect 76 "$HOLDFAST" -u "$store" guard stock 35
expect 0 "$HOLDFAST" -u "$store" guard 'another thing' 1

# The example of holdfast(1): under a lock it is the holder's own token.
mkdir bin
ln -s "$HOLDFAST" bin/holdfast
manual 'guard stock' >example
PATH=$TMP/bin:$PATH expect 0 "$HOLDFAST" -u "sqlite://$TMP/other.db" run stock -- sh example
same "$(cat out)" written
PATH=$TMP/bin:$PATH expect 76 "$HOLDFAST" -u "$store" run stock -- sh example
same "$(cat out)" ""

for token in 0 -1 +1 ' 1' 1x '' 9223372036854775808 99999999999999999999; do
    expect 64 "$HOLDFAST" -u "$store" guard -- stock "$token"
    said "'$token' is not a token"
done
expect 64 "$HOLDFAST" guard stock
said "resource and a token"
expect 64 "$HOLDFAST" guard stock 1 2
said "resource and a token"
expect 64 "$HOLDFAST" -u "$store" guard '' 1
said "name"
# A store that keeps no record refuses, as it does in C.
expect 64 "$HOLDFAST" guard stock 1
