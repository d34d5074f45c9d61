#!/bin/sh
# SPDX-License-Identifier: MIT
#
# in-company.sh: one lock, two programs that know nothing of each other.
#
#     ./in-company.sh redis+unix:///SOCKET        (HOLDFAST=path/to/holdfast if the command is not installed)
#
# The first program is any that locks with SET NX PX, as libraries for Redis in many languages do; redis-cli plays it
# here. The second is holdfast, which dialect=plain tells to use the same lock. Exits 0 if each kept the other out.
set -eu
holdfast=${HOLDFAST:-holdfast}
cli=${REDIS_CLI:-redis-cli}
url=${1:-${HOLDFAST_URL:?a URL, please: redis+unix:///PATH}}
socket=${url#redis+unix://}
export HOLDFAST_URL="$url?dialect=plain"

redis()
{
    "$cli" -s "$socket" "$@"
}

say()
{
    printf '%-64s' "$1"
}

# What must come out, and what did.
expect()
{
    echo "${2:-(nil)}"
    [ "$1" = "$2" ] || { echo "in-company.sh: expected $1" >&2; exit 1; }
}

say 'the other program takes the lock with a secret of its own:'
expect OK "$(redis SET report the-secret NX PX 30000)"

say 'holdfast finds it taken, and does not wait:'
code=0
"$holdfast" run -n report -- true 2>/dev/null || code=$?
expect 75 "$code"

say 'the other program compares and deletes:'
expect 1 "$(redis EVAL "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1]) or 0" 1 report \
    the-secret)"

# What holdfast runs is the other program, while the lock is held.
say 'holdfast holds it, and the other program finds it taken:'
inside=$("$holdfast" run report -- "$cli" -s "$socket" SET report the-secret NX PX 30000)
expect '' "$inside"

say 'afterwards it is free again:'
expect OK "$(redis SET report the-secret NX PX 30000)"
redis DEL report >/dev/null
