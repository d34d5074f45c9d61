# SPDX-License-Identifier: MIT
# --reach machines, or `reach =` of holdfast.conf: a store that excludes this machine's processes only is refused.
. "$HERE/lib.sh"

for command in 'run x touch ran' 'ls' 'status x' 'break x' 'guard x 1'; do
    for store in "file://$TMP/locks" "sqlite://$TMP/locks.db"; do
        expect 64 "$HOLDFAST" -u "$store" --reach machines $command
        said "$store does not exclude other machines, and that is wanted (--reach)"
        expect 64 "$HOLDFAST" ${command%% *} --reach=machines -u "$store" ${command#* }
        said "does not exclude other machines"
    done
done
expect 64 "$HOLDFAST" --reach galaxy ls
said "--reach: 'galaxy' is neither processes nor machines"
[ ! -e ran ] || fail "the command ran"

echo 'reach = machines' >"$HOLDFAST_SYSCONFDIR/holdfast.conf"
expect 64 "$HOLDFAST" run x touch ran
said "that is wanted ($HOLDFAST_SYSCONFDIR/holdfast.conf, line 1)"
[ ! -e ran ] || fail "the command ran"
expect 0 "$HOLDFAST" --reach processes run x touch ran
