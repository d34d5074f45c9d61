# SPDX-License-Identifier: MIT
# What the command finds in its environment.
. "$HERE/lib.sh"

expect 0 "$HOLDFAST" run 'a name' -- sh -c 'echo "$HOLDFAST_NAME|$HOLDFAST_URL"'
same "$(cat out)" "a name|file://$TMP/locks"

# Tokens are numbers that grow with each grant.
last=0
for turn in 1 2 3 4 5; do
    expect 0 "$HOLDFAST" run x -- sh -c 'echo $HOLDFAST_TOKEN'
    [ "$(cat out)" -gt $last ] || fail "token $(cat out) after $last"
    last=$(cat out)
done

# It is the token that `status` shows, and the process that `status` shows is the one that holds.
expect 0 "$HOLDFAST" run x -- sh -c 'echo "$HOLDFAST_TOKEN" >token; echo $PPID >pid; "$HOLDFAST" status x --json'
json 'it["held"] and it["token"] == int(open("token").read()) and it["pid"] == int(open("pid").read())'

# The default store is spelt out.
mkdir -m 700 runtime
expect 0 env -u HOLDFAST_URL XDG_RUNTIME_DIR="$TMP/runtime" HOME="$TMP/home" TMPDIR="$TMP/home" \
    "$HOLDFAST" run default-store -- sh -c 'echo "$HOLDFAST_URL"'
case $(cat out) in
file:///?*) ;;
*) fail "the default is not spelt out: $(cat out)" ;;
esac

# Nothing else is changed.
env | grep -v '^HOLDFAST_\|^_=\|^PWD=\|^OLDPWD=\|^SHLVL=' | sort >before
"$HOLDFAST" run x -- env | grep -v '^HOLDFAST_\|^_=\|^PWD=\|^OLDPWD=\|^SHLVL=' | sort >after
cmp before after || fail "the environment was changed"
