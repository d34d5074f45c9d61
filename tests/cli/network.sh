# SPDX-License-Identifier: MIT
# A directory that several machines can share is named and refused: locks on its files reach one machine only. The shim
# has the command find such a file system.
. "$HERE/lib.sh"

for type in 6969 fe534d42 c36400; do # NFS, SMB, Ceph
    for store in "file://$TMP/locks" "sqlite://$TMP/locks.db"; do
        expect 69 env LD_PRELOAD="$STATFS_SHIM" FILE_SYSTEM_TYPE=$type "$HOLDFAST" -u "$store" run -w 1m x -- touch ran
        said "$TMP/locks"
        said "network file system"
        [ ! -e ran ] || fail "the command ran"
    done
done
# ext4
expect 0 env LD_PRELOAD="$STATFS_SHIM" FILE_SYSTEM_TYPE=ef53 "$HOLDFAST" run x -- touch ran
[ -e ran ] || fail "the command did not run"
