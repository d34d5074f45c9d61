# SPDX-License-Identifier: MIT
# No descriptor leaks into the command: it has those of the caller, and no other.
. "$HERE/lib.sh"

# Lists the descriptors of the process that does the listing. Its own are the same each time but for its number.
list() # FILE COMMAND ...
{
    file=$1
    shift
    "$@" find /proc/self/fd/ -type l -printf '%f %l\n' >list
    sed 's,/proc/[0-9]*,/proc/N,' list | sort >"$file"
}
compare()
{
    list after "$@"
    cmp before after || fail "descriptors differ: $* $(cat before after)"
}

exec 7</dev/null
list before env
grep -q '^7 /dev/null' before || fail "the list is not one of descriptors"
for front in 0 1; do
    export HOLDFAST_FRONT=$front
    compare "$HOLDFAST" run x --
    compare "$HOLDFAST" run --max-hold 1m --no-renew x --
    compare "$HOLDFAST" run y -- "$HOLDFAST" run x -- "$HOLDFAST" run x --
    # After a wait.
    rm -f ready done
    "$HOLDFAST" run x -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
    until_true '[ -e ready ]'
    { until_true '"$HOLDFAST" status x --json | grep -q "\"waiters\": 1"'; touch done; } &
    compare "$HOLDFAST" run x --
    wait
done
