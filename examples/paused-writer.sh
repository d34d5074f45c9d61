#!/bin/sh
# SPDX-License-Identifier: MIT
#
# paused-writer.sh: a writer that was paused for longer than its lock lived is refused by the store it writes to.
#
#     ./paused-writer.sh URL          redis://… redis+unix://… postgres://… mysql://USER@HOST:PORT/… sqlite:///…
#                                     (HOLDFAST=path/to/holdfast if the command is not installed)
#
# Anna takes the lock, reads, and is stopped before she writes, as a machine is that swaps, sleeps or is moved. Her lock
# ends, rightly. Ben takes it, and writes. Then Anna goes on where she was, and writes too. No lock can prevent that:
# she had it when she looked. But she shows her token with the write, in one step with it, and the store has seen Ben's,
# which is greater. Exits 0 if her write was refused and what Ben wrote is still there.
set -eu
holdfast=${HOLDFAST:-holdfast}
url=${1:-${HOLDFAST_URL:?a URL, please}}
cli=${REDIS_CLI:-redis-cli}
scripts=${HOLDFAST_SCRIPTS:-$(dirname "$0")/../scripts}
export HOLDFAST_URL="$url"

# --- the data, and how each store checks the token in the same step that writes ---

redis()
{
    case $url in
    redis+unix:*) "$cli" -s "${url#redis+unix://}" "$@" ;;
    *) "$cli" -u "$url" "$@" ;;
    esac
}

postgres()
{
    psql --no-psqlrc -qAt -v ON_ERROR_STOP=1 "${url%%\?*}" "$@"
}

mysql()
{
    place=${url#*://} place=${place%%\?*}
    address=${place#*@} database=${place##*/}
    address=${address%/*}
    command mysql -NB -u "${place%%@*}" -h "${address%:*}" -P "${address##*:}" -e "$1" "$database"
}

sqlite()
{
    file=${url#sqlite://}
    sqlite3 -bail -cmd '.timeout 5000' "${file%%\?*}" "$1"
}

create()
{
    table='DROP TABLE IF EXISTS paused_writer; CREATE TABLE paused_writer AS SELECT 42 AS stock'
    case $url in
    redis*) redis SET 'stock:{paused-writer}' 42 ;;
    postgres*) postgres -c "SET client_min_messages = warning; $table" ;;
    mysql* | mariadb*) mysql "$table" ;;
    sqlite*) sqlite "$table" ;;
    *) echo "paused-writer.sh: not with $url" >&2 && exit 64 ;;
    esac >/dev/null
}

# write_stock TOKEN NUMBER
write_stock()
{
    case $url in
    redis*)
        redis --eval "$scripts/holdfast-guard.lua" 'hf:{paused-writer}:g' 'stock:{paused-writer}' , \
            "$1" SET 'stock:{paused-writer}' "$2"
        ;;
    postgres*)
        postgres -c "BEGIN; SELECT holdfast_guard('paused-writer', $1); UPDATE paused_writer SET stock = $2; COMMIT"
        ;;
    mysql* | mariadb*)
        mysql "BEGIN; CALL holdfast_guard('paused-writer', $1); UPDATE paused_writer SET stock = $2; COMMIT"
        ;;
    sqlite*)
        sqlite "BEGIN IMMEDIATE; INSERT INTO holdfast_guard VALUES ('paused-writer', $1);
                UPDATE paused_writer SET stock = $2; COMMIT"
        ;;
    esac
}

read_stock()
{
    case $url in
    redis*) redis GET 'stock:{paused-writer}' ;;
    postgres*) postgres -c 'SELECT stock FROM paused_writer' ;;
    mysql* | mariadb*) mysql 'SELECT stock FROM paused_writer' ;;
    sqlite*) sqlite 'SELECT stock FROM paused_writer' ;;
    esac
}

remove()
{
    case $url in
    redis*) redis DEL 'stock:{paused-writer}' 'hf:{paused-writer}:g' ;;
    postgres*) postgres -c 'DROP TABLE paused_writer' ;;
    mysql* | mariadb*) mysql 'DROP TABLE paused_writer' ;;
    sqlite*) sqlite 'DROP TABLE paused_writer' ;;
    esac >/dev/null
}

# --- a writer while it holds the lock: `holdfast run` starts this script again, with URL NAME SOLD DIRECTORY ---

if [ "$#" -eq 4 ]; then
    new=$(($(read_stock) - $3))
    if [ "$2" = Anna ]; then
        echo "$PPID $$" >"$4/taken"
        read -r _ <"$4/go" # stopped here, together with the process that keeps her lock
    fi
    echo "$2, token $HOLDFAST_TOKEN, writes $new"
    write_stock "$HOLDFAST_TOKEN" "$new" >"$4/answer" 2>&1
    exit
fi

# --- the story ---

here=$(mktemp -d)
holder=
trap 'kill -KILL $holder 2>/dev/null || true; rm -rf "$here"' EXIT
mkfifo "$here/taken" "$here/go"

fail()
{
    echo "paused-writer.sh: $1" >&2
    cat "$here/answer" >&2
    exit 1
}

create
# By default holdfast ends a command whose lock is lost. Here it is left running, as nothing must depend on that. The
# lock is not renewed: whoever is stopped in the middle of that leaves a file of SQLite locked for everybody.
"$holdfast" run -t 500ms --no-renew --on-lost ignore paused-writer -- "$0" "$url" Anna 1 "$here" &
anna=$!
read -r holder paused <"$here/taken"
echo 'Anna has read the stock, and is stopped'
kill -STOP "$holder" "$paused"

# Waits until Anna's lock has ended.
"$holdfast" run paused-writer -- "$0" "$url" Ben 2 "$here" || fail 'Ben could not write'

echo 'Anna goes on'
kill -CONT "$holder" "$paused"
echo >"$here/go"
code=0
wait "$anna" || code=$?
holder=
[ "$code" -eq 76 ] || fail "Anna's lock was not lost: $code"
grep token "$here/answer" || fail 'Anna was not refused for her token'

stock=$(read_stock)
remove
echo "the stock is $stock"
[ "$stock" -eq 40 ] || fail 'what Ben wrote is gone'
