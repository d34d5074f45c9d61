# SPDX-License-Identifier: MIT
# `holdfast break`.
. "$HERE/lib.sh"

expect 0 "$HOLDFAST" break nobody-holds-it
same "$(cat out err)" ""
"$HOLDFAST" run x -- sh -c 'touch ready; exec sleep 1000' 2>holder.err &
until_true '[ -e ready ]'
"$HOLDFAST" run x -- touch second &
until_true '"$HOLDFAST" status x --json | grep -q "\"waiters\": 1"'
expect 0 "$HOLDFAST" break x
until_true '[ -e second ]'
code=0
wait %1 || code=$?
same "$code" 76
wait
until_true 'free x'
