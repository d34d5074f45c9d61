# SPDX-License-Identifier: MIT
# Where the lock is kept: option, environment, the user's holdfast.conf, the system's, file:, in this order; and what
# cannot be understood is refused, never passed over.
. "$HERE/lib.sh"
user=$HOME/.config/holdfast.conf system=$HOLDFAST_SYSCONFDIR/holdfast.conf
unset HOLDFAST_URL
mkdir -m 700 "$HOME/.config" a b c d

url_is() # URL WHY
{
    expect 0 "$HOLDFAST" engines --url
    same "$(sed -n 's/^url  *//p' out)" "$1  ($2)"
}

# What is used, and why; each is overruled by the next.
url_is file: default
printed "files          $user $system"
printf '# ours\n\n  url = file://%s/a  \nttl=5s\n' "$TMP" >"$system"
url_is "file://$TMP/a" "$system, line 3"
expect 0 "$HOLDFAST" run x -- sh -c 'echo "$HOLDFAST_URL"'
same "$(cat out)" "file://$TMP/a"
echo "url = file://$TMP/b" >"$user"
url_is "file://$TMP/b" "$user, line 1"
expect 0 "$HOLDFAST" run x -- sh -c 'echo "$HOLDFAST_URL"'
same "$(cat out)" "file://$TMP/b"
export HOLDFAST_URL=file://$TMP/c
url_is "file://$TMP/c" HOLDFAST_URL
expect 0 "$HOLDFAST" run x -- sh -c 'echo "$HOLDFAST_URL"'
same "$(cat out)" "file://$TMP/c"
expect 0 "$HOLDFAST" -u "file://$TMP/d" engines --url
printed "file://$TMP/d  (--url)"
expect 0 "$HOLDFAST" engines --url="file://$TMP/d"
printed "file://$TMP/d  (--url)"
unset HOLDFAST_URL

# All of it, for a program too; XDG_CONFIG_HOME says where the user's file is.
mkdir xdg
echo "url = file://$TMP/d" >xdg/holdfast.conf
XDG_CONFIG_HOME=$TMP/xdg expect 0 "$HOLDFAST" engines --url --json
json "it['url'] == 'file://$TMP/d' and it['url_from'] == '$TMP/xdg/holdfast.conf, line 1'"
json "it['files'] == ['$TMP/xdg/holdfast.conf', '$system']"
json "it['ttl'] == '5s' and it['ttl_from'] == '$system, line 4' and it['reach_from'] == 'default'"

# The time-to-live is the lock's, unless an option says otherwise.
"$HOLDFAST" -u "sqlite://$TMP/locks.db" run x -- "$HOLDFAST" status x --json >out || fail "no sqlite"
json '3000 < it["remaining_ms"] <= 5000'
"$HOLDFAST" -u "sqlite://$TMP/locks.db" run -t 60s x -- "$HOLDFAST" status x --json >out
json '30000 < it["remaining_ms"]'

# No password is shown, wherever it stands.
expect 0 "$HOLDFAST" -u 'redis://me:s3cr:e@t@host:1/2?dialect=plain' engines --url
printed "redis://me@host:1/2?dialect=plain"
expect 0 "$HOLDFAST" -u 'postgres://h/d?password=s3cret&strategy=row&sslpassword=s3cret&table=t' engines --url
printed "postgres://h/d?strategy=row&table=t  (--url)"

# Mistakes.
refused() # TEXT LINE ...: the user's file
{
    text=$1
    shift
    printf '%s\n' "$@" >"$user"
    expect 64 "$HOLDFAST" run x -- touch ran
    said "$user, line $#: $text"
    [ ! -e ran ] || fail "the command ran"
}
refused "'ulr' is none of url" 'ulr = file:'
refused "it is not KEY = VALUE" '' 'url file:'
refused "url is empty" 'url ='
refused "url stands there twice" 'url = file:' 'url = file:'
refused "ttl '50ms' is too short: the least is 100ms" 'ttl = 50ms'
refused "ttl 'soon' is not a duration" 'ttl = soon'
refused "'galaxy' is neither processes nor machines" 'reach = galaxy'
refused "password_file must be an absolute path" 'password_file = secret'
head -c 70000 /dev/zero | tr '\0' '#' >"$user"
expect 64 "$HOLDFAST" ls
said "too long"
printf 'url = file:\0' >"$user"
expect 64 "$HOLDFAST" ls
said "not a text"
# Help needs no configuration.
expect 0 "$HOLDFAST" run --help
expect 0 "$HOLDFAST" engines
rm "$user"
# A directory in the place of a file cannot be read.
mkdir "$user"
expect 64 "$HOLDFAST" ls
said "cannot read $user"
rmdir "$user"

# Empty is not the default.
HOLDFAST_URL='' expect 64 "$HOLDFAST" run x -- touch ran
said "HOLDFAST_URL is empty"
HOLDFAST_PASSWORD_FILE='' expect 64 "$HOLDFAST" run x -- touch ran
said "HOLDFAST_PASSWORD_FILE is empty"
expect 64 "$HOLDFAST" run -u '' x -- touch ran
said "URL is empty"
[ ! -e ran ] || fail "the command ran"

# mem: is for programs, and for measuring.
expect 64 "$HOLDFAST" -u mem: run x -- touch ran
said "would exclude nobody"
expect 64 "$HOLDFAST" -u MEM: ls
said "would exclude nobody"
expect 0 "$HOLDFAST" -u mem: bench --seconds 0.1 --json
[ ! -e ran ] || fail "the command ran"
