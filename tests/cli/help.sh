# SPDX-License-Identifier: MIT
# Help on every level, and the version.
. "$HERE/lib.sh"

expect 0 "$HOLDFAST" --version
same "$(cat out)" "holdfast $(sed -n 's/^holdfast //p' out)"
grep -Eq '^holdfast [0-9]+\.[0-9]+\.[0-9]+$' out || fail "no version"
expect 0 "$HOLDFAST" --help
printed "usage: holdfast"
for command in run hold ls status break forget guard engines doctor bench verify; do
    expect 0 "$HOLDFAST" --help
    printed "  $command "
    expect 0 "$HOLDFAST" $command --help
    printed "usage: holdfast"
    printed "$command"
    same "$(cat err)" ""
done
# Every option that the help of `run` names is one.
"$HOLDFAST" run --help | grep -o -- '--[a-z-]*[a-z]' | sort -u >options
[ "$(wc -l <options)" -ge 9 ] || fail "no options in the help"
while read -r option; do
    code=0
    "$HOLDFAST" run "$option" >out 2>err || code=$?
    ! grep -q 'unknown option' err || fail "$option is in the help only"
done <options
