# SPDX-License-Identifier: MIT
# The password file of holdfast.conf, on a Redis that wants a password: it is used, is not handed on as a password, and
# never goes to a server that somebody nearer has chosen.
. "$HERE/lib.sh"
user=$HOME/.config/holdfast.conf system=$HOLDFAST_SYSCONFDIR/holdfast.conf
mkdir -m 700 "$HOME/.config"
url=redis+unix://$TMP/socket
unset HOLDFAST_URL
"$REDIS_SERVER" --port 0 --unixsocket "$TMP/socket" --requirepass 's3cret pass' --save '' --dir "$TMP" >redis.log 2>&1 &
server=$!
trap 'kill $server' EXIT
until_true '"$HOLDFAST" -u "$url" ls >/dev/null 2>&1 || [ $? -eq 77 ]' # it listens, and wants a password
echo 's3cret pass' >secret
echo wrong >wrong
chmod 600 secret wrong

expect 77 "$HOLDFAST" -u "$url" ls
printf 'url = %s\npassword_file = %s/secret\n' "$url" "$TMP" >"$system"
expect 0 "$HOLDFAST" ls
expect 0 "$HOLDFAST" engines --url
printed "password_file  $TMP/secret  ($system, line 2)"
! grep -q s3cret out || fail "the password is shown"
# The command gets the path, so that what it runs can use the store too, and not the password.
expect 0 "$HOLDFAST" run x -- sh -c '"$HOLDFAST" run y -- env'
! grep -q s3cret out || fail "the command has the password"
printed "HOLDFAST_PASSWORD_FILE=$TMP/secret"
printed "HOLDFAST_NAME=y"
# The system's password is not for a URL of the user's, of the environment or of an option; the user's own is.
echo "url = $url" >"$user"
expect 77 "$HOLDFAST" ls
HOLDFAST_URL=$url expect 77 "$HOLDFAST" ls
expect 77 "$HOLDFAST" -u "$url" ls
echo "password_file = $TMP/secret" >>"$user"
expect 0 "$HOLDFAST" ls
HOLDFAST_URL=$url expect 77 "$HOLDFAST" ls
HOLDFAST_URL=$url HOLDFAST_PASSWORD_FILE=secret expect 0 "$HOLDFAST" ls
HOLDFAST_PASSWORD_FILE=$TMP/secret expect 77 "$HOLDFAST" -u "$url" ls
# A user's password for the system's URL; the environment's comes first, and a password before its file.
echo "password_file = $TMP/wrong" >"$user"
expect 77 "$HOLDFAST" ls
HOLDFAST_PASSWORD_FILE=$TMP/secret expect 0 "$HOLDFAST" ls
HOLDFAST_PASSWORD='s3cret pass' expect 0 "$HOLDFAST" ls
# One that cannot be read is said.
echo "password_file = $TMP/missing" >"$user"
expect 64 "$HOLDFAST" run x -- true
said "cannot read $TMP/missing"
